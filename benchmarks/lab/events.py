"""Discrete events: what happens, in order of time, and of equal times in the order in which it was arranged."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from benchmarks.lab.clock import VirtualClock

Event = Callable[[], None]


class Timeline:
    """The events to come, and the clock that they turn."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._heap: list[tuple[float, int, Event]] = []
        self._numbers = count()

    def at(self, moment: float, event: Event) -> None:
        """Arrange for an event at `moment` (seconds of the clock), which is now at the earliest."""
        heappush(self._heap, (max(moment, self.clock.now()), next(self._numbers), event))

    def after(self, seconds: float, event: Event) -> None:
        """Arrange for an event in so many seconds; 0: now, behind what is arranged for now already."""
        self.at(self.clock.now() + seconds, event)

    def run(self) -> None:
        """Let everything happen until nothing is left."""
        while self._heap:
            moment, _, event = heappop(self._heap)
            self.clock.turn_to(moment)
            event()
