"""Processes of a benchmark's own, which say in a line of their output where they are, or that they are ready."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m` with these words, for the duration of the block."""
    with subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.terminate()
            started.wait()


def said(started: subprocess.Popen[str]) -> str:
    """The next line that it writes. Raises RuntimeError if it ends first."""
    assert started.stdout is not None
    line = started.stdout.readline().strip()
    if not line:
        raise RuntimeError("a process of the benchmark ended; its log is above")
    return line
