"""The kernels in C as a library: compiled by gcc for this very processor when they are first asked for, and kept for the next time.

Its parallel regions are run by the OpenMP threads that torch has, since a second set of them would wait on the same cores: the library
names no OpenMP runtime, and finds the one that torch has loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Final

import torch  # noqa: F401 - brings the OpenMP runtime

from specsplit.errors import LoadError

WIDTH: Final = 8
"""Widths of heads are multiples of it."""

_log = logging.getLogger(__name__)

_FOLDER: Final = Path(__file__).parent
_UNITS: Final = ("attention", "chunks", "decoder", "low_rank", "uniforms")
"""Sources in C, without their suffix."""
_COMPILE: Final = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fopenmp", "-fPIC")
_MOST_SECONDS: Final = 120

_ADDRESS: Final = ctypes.c_void_p
_COUNT: Final = ctypes.c_int64
_FUNCTIONS: Final = {
    "working_numbers": (_ADDRESS, _COUNT, _COUNT),
    "attend": (*(_ADDRESS,) * 2, *(_COUNT,) * 2, *(_ADDRESS,) * 5, _COUNT),
    "chunk_numbers": (_ADDRESS, _COUNT),
    "attend_chunks": (*(_ADDRESS,) * 2, _COUNT, *(_ADDRESS,) * 5, _COUNT),
    "panel_width": (),
    "product": (_ADDRESS, _COUNT, *(_ADDRESS,) * 2, _COUNT),
    "mlp": (*(_ADDRESS,) * 3, _COUNT, *(_ADDRESS,) * 3, _COUNT),
    "project": (*(_ADDRESS,) * 3, *(_COUNT,) * 2, *(_ADDRESS,) * 5, _COUNT),
    "finish": (*(_ADDRESS,) * 3, *(_COUNT,) * 2, *(_ADDRESS,) * 6, _COUNT),
    "add_low_rank": (_ADDRESS, *(_COUNT,) * 2, _ADDRESS, _COUNT, *(_ADDRESS,) * 2, _COUNT),
    "negated_uniforms": (*(_ADDRESS,) * 2, *(_COUNT,) * 2, _ADDRESS),
}
"""What they take."""
_COUNTING: Final = ("working_numbers", "chunk_numbers", "panel_width")
"""Functions that return a count; others return nothing."""


def library() -> ctypes.CDLL:
    """The kernels. Raises LoadError, saying why, where they cannot be had."""
    kernels = found()
    if isinstance(kernels, str):
        raise LoadError(kernels)
    return kernels


def obstacle() -> str | None:
    """Why there are no kernels here; None: there are."""
    kernels = found()
    return kernels if isinstance(kernels, str) else None


@cache
def found() -> ctypes.CDLL | str:
    """The kernels, or why there are none; asked for once, so that a machine without a compiler is not searched for every model."""
    try:
        kept = _kept()
        if kept is not None:
            return _load(kept)
        with tempfile.TemporaryDirectory(prefix="specsplit-native-") as folder:
            return _load(Path(folder))  # what is loaded stays when its file goes
    except (OSError, subprocess.SubprocessError) as error:
        return f"kernels in C are not there: {error}"


def _load(folder: Path) -> ctypes.CDLL:
    compiled = folder / f"kernels-{_key()}.so"
    if compiled.is_file():
        try:
            return _opened(compiled)
        except OSError as error:
            _log.warning("%s cannot be loaded and is compiled anew: %s", compiled, error)
    compiler = shutil.which("gcc")
    if compiler is None:
        raise OSError("there is no gcc: install it (Debian: apt-get install gcc libc6-dev)")
    _compile(compiler, compiled)
    return _opened(compiled)


def _opened(compiled: Path) -> ctypes.CDLL:
    kernels = ctypes.CDLL(str(compiled))
    for name, takes in _FUNCTIONS.items():
        function = getattr(kernels, name)
        function.argtypes, function.restype = takes, _COUNT if name in _COUNTING else None
    return kernels


def _kept() -> Path | None:
    """The folder where libraries are kept, if there can be one that this user alone writes into, as what lies in it is run."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        kept = (Path(root) if root else Path.home() / ".cache") / "specsplit" / "native"
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = kept.stat()
    except (OSError, RuntimeError):
        return None
    safe = facts.st_uid == os.getuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return kept if safe and os.access(kept, os.W_OK | os.X_OK) else None


def _key() -> str:
    """What a compiled library depends on: the sources, how they are compiled, and the processor."""
    sources = (source.read_text() for source in sorted(_FOLDER.glob("*.[ch]")))
    facts = (*sources, *_COMPILE, platform.machine(), *_processor())
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _processor() -> list[str]:
    """What the system says of the first processor: model, and instructions that it has."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return [platform.processor()]
    names = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")
    return [line for line in first.splitlines() if line.split("\t")[0].split(":")[0].strip() in names]


def _compile(compiler: str, wanted: Path) -> None:
    started = perf_counter()
    with tempfile.TemporaryDirectory(dir=wanted.parent) as folder:
        objects, linked = {unit: str(Path(folder, f"{unit}.o")) for unit in _UNITS}, Path(folder, "kernels.so")
        # Linked apart: with -fopenmp the linker would add a runtime of its own.
        for unit, compiled in objects.items():
            _run(compiler, *_COMPILE, "-c", str(_FOLDER / f"{unit}.c"), "-o", compiled)
        _run(compiler, "-shared", *objects.values(), "-o", str(linked), "-lm")
        with linked.open("rb") as written:
            os.fsync(written.fileno())  # what is cut off would be loaded, and crash
        linked.replace(wanted)
    _log.info("kernels in C compiled in %.1f s, kept in %s", perf_counter() - started, wanted)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[0]
        raise OSError(f"{' '.join(command[:1])} fails: {said}")
