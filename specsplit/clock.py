"""Time as an argument: everything that waits or measures is given a Clock, so tests can turn it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    """The machine's own monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds, as last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` (>= 0)."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back ({seconds} s)")
        self._now += seconds
