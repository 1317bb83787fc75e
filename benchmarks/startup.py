"""The `startup` benchmark: what a command costs before it does anything, as whole processes, and how long a cluster takes to a first token.

A container's health check is such a process every ten seconds, so processor time is what counts; it depends little on what else runs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from resource import RUSAGE_CHILDREN, getrusage

from benchmarks import first_token
from benchmarks.context import Context
from benchmarks.plots import sideways
from benchmarks.report import Row
from specsplit.cli.commands import ENTRIES
from specsplit.cli.local import Child

AIMS = {"health": 0.25, "--version": 0.25}
"""Seconds of processor time, user and system, at most."""
COLUMNS = {
    "command": "command", "cpu": "CPU s, median", "least": "min", "most": "max", "wall": "wall s, median",
    "aim": "aim, CPU s",
}  # fmt: skip


def run(context: Context) -> None:
    """Measure, print, write. Exit 1 if an aim is missed."""
    repeats = 3 if context.quick else 21
    coordinator = Child("coordinator", "coordinator", {"model": context.target, "listen": "127.0.0.1:0"}, None)
    try:
        commands = _commands(coordinator.wait_listening(60))
        with context.progress("startup", len(commands)) as advance:
            rows = [_row(name, arguments, repeats, advance) for name, arguments in commands.items()]
    finally:
        coordinator.terminate()
        coordinator.wait(10)
    missed = [str(row["command"]) for row in rows if isinstance(row["aim"], float) and row["median_s"] > row["aim"]]  # pyright: ignore[reportOperatorIssue]
    context.finish(
        "startup", "What a command costs before it does anything", COLUMNS, rows, {"repeats": repeats},
        ["Whole processes, the interpreter's own start included; health asks a coordinator that serves.",
         f"Aims missed: {', '.join(missed)}." if missed else "Every aim is met."],
        partial(sideways, rows=rows, name=lambda row: str(row["command"]), key="cpu", xlabel="processor time, seconds"),
    )  # fmt: skip
    missed += first_token.run(context, 1 if context.quick else 5)
    if missed:
        sys.exit(f"aims missed: {', '.join(missed)}")


def _commands(address: str) -> dict[str, Sequence[str]]:
    helps = {f"{name} --help": (name, "--help") for name in ENTRIES}
    return {"health": ("health", address), "--version": ("--version",), "--help": ("--help",), **helps}


def _row(name: str, arguments: Sequence[str], repeats: int, advance: Callable[[str], None]) -> Row:
    """Run a command so often; the first run, which may have to read files into memory, is not counted."""
    taken = [_spent(arguments) for _ in range(repeats + 1)][1:]
    cpu, wall = sorted(cpu for cpu, _ in taken), sorted(wall for _, wall in taken)
    median = cpu[repeats // 2]
    advance(name)
    return {
        "command": name, "cpu": f"{median:.3f}", "least": f"{cpu[0]:.3f}", "most": f"{cpu[-1]:.3f}",
        "wall": f"{wall[repeats // 2]:.3f}", "aim": AIMS.get(name, "-"), "median_s": median,
    }  # fmt: skip


def _spent(arguments: Sequence[str]) -> tuple[float, float]:
    """Processor time and wall time of one process. Raises CalledProcessError if it fails."""
    before, began = getrusage(RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "specsplit", *arguments], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.monotonic() - began, getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall
