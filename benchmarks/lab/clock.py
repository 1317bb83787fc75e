"""Time that is turned by the events of a laboratory."""

from __future__ import annotations


class PricedClock:
    """A `specsplit.clock.Clock` that is read at the beginning and at the end of some work, which takes a given time."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: from a first reading to the second one, from a third to the fourth, and so on."""
        self._seconds = seconds
        self._readings = 0
        self._taken = 0

    def now(self) -> float:
        """Seconds of all work so far."""
        self._readings += 1
        return self._readings // 2 * self._seconds

    def take(self) -> float:
        """Seconds of the work since this was last asked."""
        done, self._taken = self._readings // 2 - self._taken, self._readings // 2
        return done * self._seconds


class VirtualClock:
    """A `specsplit.clock.Clock` that stands still between two events."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def turn_to(self, moment: float) -> None:
        """Move on to `moment`. Raises ValueError if that is past."""
        if moment < self._now:
            raise ValueError(f"a clock cannot go back, from {self._now} to {moment}")
        self._now = moment
