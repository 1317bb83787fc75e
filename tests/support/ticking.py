"""A clock that moves on whenever it is looked at."""

from __future__ import annotations

from collections.abc import Callable


class TickingClock:
    """Every look is `tick()` seconds after the one before. A second is longer than anything that waits for its time."""

    def __init__(self, tick: Callable[[], float] = lambda: 1.0) -> None:
        self._tick = tick
        self._now = 0.0

    def now(self) -> float:
        """Seconds since it was made."""
        self._now += self._tick()
        return self._now
