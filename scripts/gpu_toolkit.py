"""Where CUDA's toolkit and the driver's library lie: FlashInfer compiles its kernels with the one, and links them with both.

It takes the folder above that of `which nvcc` for the toolkit, and links with `-L` of its lib64 and stubs alone. So it fails where nvcc is
a script that starts the real one, where the toolkit has its libraries in lib, and where the driver came without a libcuda.so. This module
imports the standard library alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

USUAL = Path("/usr/local/cuda")
LIBRARIES = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
"""Where a toolkit may have its libraries."""
_HERE = re.compile(r"^#\$ _HERE_=(.+)$", re.MULTILINE)
_DRIVER = re.compile(r"libcuda\.so\.1 .*=> (\S+)")


def toolkit(base: Mapping[str, str]) -> Path | None:
    """Find the toolkit's folder: CUDA_HOME or CUDA_PATH, or where the nvcc on PATH says that it lies, or /usr/local/cuda.

    None if there is no nvcc.
    """
    named = base.get("CUDA_HOME") or base.get("CUDA_PATH")
    if named:
        return Path(named)
    nvcc = shutil.which("nvcc", path=base.get("PATH", os.defpath))
    if nvcc is None:
        return USUAL if (USUAL / "bin" / "nvcc").exists() else None
    said = subprocess.run([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull], capture_output=True, text=True, check=False)
    found = _HERE.search(said.stderr + said.stdout)
    return (Path(found[1]) if found else Path(nvcc).resolve().parent).parent


def linked(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What FlashInfer's build has to find in the environment; nothing if there is no toolkit.

    `folder` gets a libcuda.so to link with, if the toolkit has none.
    """
    home = toolkit(base)
    if home is None:
        return {}
    folders = [*_with("libcudart.so", home), *_with_driver(home, folder)]
    own = base.get("FLASHINFER_EXTRA_LDFLAGS", "")
    return {
        "CUDA_HOME": str(home),
        "FLASHINFER_EXTRA_LDFLAGS": " ".join([*(f"-L{each}" for each in folders), own]).strip(),
    }


def _with(library: str, home: Path, below: str = "") -> list[Path]:
    """The toolkit's folders that have a library."""
    return [home / each / below for each in LIBRARIES if (home / each / below / library).exists()]


def _with_driver(home: Path, folder: Path) -> list[Path]:
    """The folder that has a libcuda.so: the toolkit's stub, or else `folder`, with a link to the driver's library or a stub of our own."""
    stubs = _with("libcuda.so", home, "stubs")
    if stubs:
        return stubs
    folder.mkdir(parents=True, exist_ok=True)
    library, driver = folder / "libcuda.so", _driver()
    library.unlink(missing_ok=True)
    if driver is not None:
        library.symlink_to(driver)
        return [folder]
    # Nothing is taken of a stub but its name: where the kernels run, that is the driver's.
    empty = [
        shutil.which("gcc") or "cc",
        "-shared",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        str(library),
        "-x",
        "c",
        os.devnull,
    ]
    return [folder] if subprocess.run(empty, check=False).returncode == 0 else []


def _driver() -> Path | None:
    """The driver's library, as the loader knows it."""
    program = shutil.which("ldconfig", path=f"{os.defpath}:/sbin:/usr/sbin")
    if program is None:
        return None
    found = _DRIVER.search(subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout)
    return Path(found[1]) if found else None
