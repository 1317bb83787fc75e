"""Time that is turned by the events of a laboratory."""

from __future__ import annotations


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
