"""Which processes there are, as the kernel says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, those that are over and not waited for included."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sorted(int(each) for each in text.split())


def runs(pid: int) -> bool:
    """False for a process that is over, be it that nobody has waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_gone(pids: Sequence[int], within_s: float = 20.0) -> bool:
    """Whether all of them are over, at the latest after so many seconds."""
    deadline = time.monotonic() + within_s
    while any(runs(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
