"""A verifier's cores, of which the drafters' expansions take a share: a step lasts longer by that share of the time in which they run."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.lab.events import Timeline


class Cores:
    """What one verifier computes on. A step is so many seconds of work, done at full speed while nothing else runs there."""

    def __init__(self, timeline: Timeline, contention: float) -> None:
        """`contention`: share of the speed that an expansion takes while it runs; 0: the verifier has its cores to itself."""
        self._timeline = timeline
        self._contention = contention
        self._done: Callable[[], None] | None = None
        """What is to be called when the step is over; None: there is no step."""
        self._left_s = 0.0
        """Work of the step that is left, as of `_at`."""
        self._at = 0.0
        self._taken_until = 0.0
        """When the latest expansion ends."""
        self._due = 0
        """Which of the ends that were arranged is still right."""

    @property
    def shared(self) -> bool:
        """True if expansions take some of it."""
        return self._contention > 0.0

    def step(self, seconds: float, done: Callable[[], None]) -> None:
        """Begin a step of so much work; `done` is called when it is over."""
        if not self.shared:
            self._timeline.after(seconds, done)
            return
        self._done, self._left_s, self._at = done, seconds, self._timeline.clock.now()
        self._arrange()

    def take(self, seconds: float) -> None:
        """Note that an expansion of so many seconds begins. One drafter's expansions never overlap."""
        if not self.shared:
            return
        now = self._timeline.clock.now()
        self._left_s -= (now - self._at) - self._contention * max(0.0, min(now, self._taken_until) - self._at)
        self._at, self._taken_until = now, now + seconds
        if self._done is not None:
            self._arrange()

    def _arrange(self) -> None:
        """Arrange for the end of the step, if no further expansion begins."""
        self._due += 1
        due, taken_s = self._due, max(0.0, self._taken_until - self._at)
        beside_s = (1.0 - self._contention) * taken_s
        if self._left_s <= beside_s and self._contention < 1.0:
            seconds = self._left_s / (1.0 - self._contention)
        else:
            seconds = taken_s + self._left_s - beside_s
        self._timeline.after(max(0.0, seconds), lambda: self._end(due))

    def _end(self, due: int) -> None:
        if due == self._due and self._done is not None:
            done, self._done = self._done, None
            done()
