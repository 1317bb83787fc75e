"""The tests that need a GPU (marker `gpu`), in a pytest of their own that is stopped when its time is over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.job import Job

ROOT = Path(__file__).resolve().parents[2]
WORKERS = max(1, min(8, (os.cpu_count() or 1) // 2))
"""They compile kernels most of the time. 8 at most: each has a context, and tensors, of its own on the one card."""
FAILED = "failed tests of "
"""How the facts begin that list them, by part."""
KINDS = ("triton", "graphs", "flashinfer")
"""What names of files have in them whose tests are a part of their own."""
NEEDED = ("pytest", "pytest_asyncio", "pytest_timeout", "hypothesis")
_OUTCOME = re.compile(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b.*\[\s*\d+%\]|\[\s*\d+%\]\s+(PASSED|FAILED|ERROR|SKIPPED)\b")
_SKIPPED = re.compile(r"SKIPPED \[(\d+)\] (\S+): (.*)")


def parity(job: Job, files: str = "") -> None:
    """Run the tests of files whose names have that in them, and count what became of them; without, those that are in no other part."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        job.findings.skipped("tests", f"the package {missing[0]} is missing")
        return
    workers = WORKERS if job.device.startswith("cuda") else 0
    lines, finished = _output(_command(chosen(files), workers), job.until)
    outcomes = counted(lines)
    for tests, why in skipped(lines):
        job.findings.skipped(tests, why)
    job.findings.fact(f"{FAILED}{job.findings.part}", failed(lines) or "none")
    for outcome in ("PASSED", "FAILED", "ERROR", "SKIPPED"):
        if outcomes[outcome] or outcome in ("PASSED", "FAILED"):
            job.findings.figure("pytest -m gpu", outcome.lower(), outcomes[outcome])
    if not finished:
        job.findings.skipped("tests that had not ended", f"after {outcomes.total()} of them the time was over")
    elif not outcomes:
        job.findings.skipped("tests", f"pytest ran none: {lines[-1] if lines else 'it said nothing'}")


def chosen(files: str) -> list[str]:
    """The files of a part."""
    return [each for each in gpu_tests() if next((kind for kind in KINDS if kind in each), "") == files]


def gpu_tests() -> list[str]:
    """Files that have such tests; the others may need packages that are not there. All of tests/gpu have, some by a list of marks."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = (
        file for file in files if file.parent.name == "gpu" or "pytest.mark.gpu" in file.read_text(encoding="utf-8")
    )
    return [str(file.relative_to(ROOT)) for file in marked]


def counted(lines: list[str]) -> Counter[str]:
    """How many tests ended how, by pytest's verbose lines."""
    found = (_OUTCOME.search(line) for line in lines)
    return Counter(each[1] or each[2] for each in found if each is not None)


def skipped(lines: list[str]) -> list[tuple[str, str]]:
    """Tests that were skipped, by where they say so, and why; out of pytest's summary."""
    found = (_SKIPPED.match(line) for line in lines)
    return [(f"{each[1]} tests at {each[2]}", each[3]) for each in found if each is not None]


def failed(lines: list[str]) -> list[str]:
    """Tests that failed, out of pytest's summary."""
    return [line.partition(" ")[2] for line in lines if line.startswith(("FAILED ", "ERROR "))]


def _command(files: list[str], workers: int) -> list[str]:
    """Warnings are errors in the project's own environment; here others' versions of everything may stand, and their plugins too."""
    several = workers > 0 and find_spec("xdist") is not None
    parallel = ["-p", "xdist.plugin", "-n", str(workers), "--dist", "load"] if several else []
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", *parallel]
    return [
        sys.executable, "-m", "pytest", *plugins, "-m", "gpu", "-v", "-rfEs", "-W", "default", "-p", "no:cacheprovider", *files
    ]  # fmt: skip


def _output(command: list[str], until: float) -> tuple[list[str], bool]:
    """The lines that a command writes until it ends (True) or its time is over."""
    seconds = max(1.0, until - time.monotonic())
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
    except subprocess.TimeoutExpired as error:
        return _printed(error.stdout or b""), False
    return _printed(done.stdout), True


def _printed(output: bytes) -> list[str]:
    """The lines of the output, which are shown too, for the log."""
    text = output.decode(errors="replace")
    print(text, flush=True)
    return text.splitlines()
