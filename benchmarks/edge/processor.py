"""Processor time of another process, which ticks of 10 ms are too coarse for at a low load."""

from __future__ import annotations

import time
from typing import Final

_LOOK_S: Final = 0.1
_IDLE: Final = 0.2
"""Share of a core."""
_LONGEST_S: Final = 20.0
_SCHEDULED: Final = 2
"""What the clock of a process counts, in Linux's numbers of clocks (CPUCLOCK_SCHED)."""


def processor_s(pid: int) -> float:
    """Seconds that a process has used since it began, all its threads together."""
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def wait_idle(*pids: int) -> None:
    """Return once each of these has next to nothing to do, so that nobody pays for what callers have left behind; 20 s at most."""
    until, before = time.monotonic() + _LONGEST_S, [processor_s(pid) for pid in pids]
    while time.monotonic() < until:
        time.sleep(_LOOK_S)
        now = [processor_s(pid) for pid in pids]
        if max(b - a for a, b in zip(before, now, strict=True)) < _IDLE * _LOOK_S:
            return
        before = now
