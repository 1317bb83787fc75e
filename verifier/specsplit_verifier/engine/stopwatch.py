"""Where the engine thread's time goes between two steps: the forward, waiting, and everything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from specsplit.clock import Clock

SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class Lap:
    """One step's share of the time. Moments are seconds of the clock."""

    ended: float
    waited_s: float
    host_s: float
    """Neither waiting nor the forward."""


class Stopwatch:
    """Accounts for the time since the last step ended, or since the thread last had nothing to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.now()
        self._waited_s = 0.0
        self.between_s = 0.0
        """Time between two forwards, lately."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time spent inside as waiting."""
        began = self._clock.now()
        try:
            yield
        finally:
            self._waited_s += self._clock.now() - began

    def waited(self, seconds: float) -> None:
        """Count time as waiting that was not spent in `waiting`."""
        self._waited_s += seconds

    def restart(self) -> None:
        """Begin anew: the thread had nothing to do until now."""
        self._since, self._waited_s = self._clock.now(), 0.0

    def lap(self, forward_s: float) -> Lap:
        """End the lap of a step whose forward took so long."""
        ended = self._clock.now()
        lap = Lap(ended, self._waited_s, ended - self._since - self._waited_s - forward_s)
        self._since, self._waited_s = ended, 0.0
        self.between_s += SMOOTHING * (lap.waited_s + lap.host_s - self.between_s)
        return lap
