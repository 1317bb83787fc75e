"""`make gpu-wheels`: the packages that a machine with a GPU, torch and transformers may lack, as wheels in build/wheels.

Of FlashInfer it takes what its attention needs, and not the gigabytes of CUDA that it requires: kernels are compiled there, by nvcc.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import gpu_carried

ROOT = Path(__file__).resolve().parents[1]
FOLDER = gpu_carried.FOLDER
PYTHON = "3.12"
STANDS_THERE = ("torch", "transformers", "safetensors", "numpy", "tokenizers")
"""These, and what they alone require, are taken as they are there."""
TESTS = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")
FLASHINFER = ("flashinfer-python", "apache-tvm-ffi", "nvidia-ml-py", "ninja")
PLATFORMS = ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(5, 40)))


def main() -> None:
    """Fetch them, and say how large they are, and all that is carried. The status is 1 if that is too large."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = wanted([Requirement(each).name for each in project["dependencies"]])
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    platforms = [word for each in PLATFORMS for word in ("--platform", f"{each}_x86_64")]
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    exact = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON, *platforms]
    subprocess.run([*fetch, *exact, "-c", str(ROOT / "constraints.txt"), "--dest", str(FOLDER), *names], check=True)
    wheels = list(FOLDER.glob("*.whl"))
    size = sum(each.stat().st_size for each in wheels) / 2**20
    print(f"gpu-wheels: {len(wheels)} wheels for Python {PYTHON} on Linux (x86-64), {size:.0f} MiB, in {FOLDER}")
    gpu_carried.tell_sum("gpu-wheels")


def wanted(requirements: Iterable[str]) -> list[str]:
    """`requirements` and what tests need, with all that these require themselves, but for what stands there anyway."""
    found, open_names = set[str](FLASHINFER), [canonicalize_name(name) for name in (*requirements, *TESTS)]
    while open_names:
        name = open_names.pop()
        if name not in found and name not in STANDS_THERE:
            found.add(name)
            open_names += _required(name)
    return sorted(found)


def _required(name: str) -> list[str]:
    """Names that a package requires, by what is installed here."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:  # a marker keeps it from this Python, or it is of another platform
        return []
    there = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0", "extra": ""}
    parsed = [Requirement(line) for line in lines]
    return [canonicalize_name(each.name) for each in parsed if each.marker is None or each.marker.evaluate(there)]


if __name__ == "__main__":
    main()
