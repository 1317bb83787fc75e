"""The time that a caller gives a request, over all the calls that it takes."""

from __future__ import annotations

from specsplit.clock import Clock, SystemClock


class Until:
    """Counts from when it is made."""

    def __init__(self, timeout_s: float | None, clock: Clock | None = None) -> None:
        """`timeout_s`: None for no limit."""
        self._clock = clock or SystemClock()
        self._end = None if timeout_s is None else self._clock.now() + timeout_s

    @property
    def left_s(self) -> float | None:
        """Seconds that are left, 0 at least; None: there is no limit."""
        return None if self._end is None else max(0.0, self._end - self._clock.now())

    def at_most(self, seconds: float) -> float:
        """So many seconds, or what is left."""
        left_s = self.left_s
        return seconds if left_s is None else min(seconds, left_s)
