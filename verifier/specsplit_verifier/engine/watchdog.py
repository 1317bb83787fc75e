"""Tells a step that hangs from one that is long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from specsplit.clock import Clock
from specsplit.first_runs import FirstRuns

MANY_TIMES: Final = 50
"""A step that takes so many times as long as steps of its size have taken hangs, if it takes the least limit too."""
LEARNT_S: Final = 10.0
"""Least limit of a step of a size that has been run before."""


class Watchdog:
    """The thread that has steps run tells it of each; the event loop looks, at regular times."""

    def __init__(self, clock: Clock, limit_s: float, *, learns: bool = True) -> None:
        """`limit_s`: least limit of the first step of a size, which may compile kernels. Later ones have LEARNT_S, if that is less.

        `learns`: False where steps wait for other processes, or an operator has said how long they may take: all have `limit_s` then.
        """
        self._clock = clock
        self._limit_s = limit_s
        self._learnt_s = min(limit_s, LEARNT_S) if learns else limit_s
        self._runs = FirstRuns()
        """Token counts of steps that have been run to their end."""
        self._step: tuple[float, float, float] | None = None
        """(when it began, `_stood_still_s` then, how long it may take)."""
        self._looked: float | None = None
        self._stood_still_s = 0.0
        """Time within steps in which the process cannot have run: it was stopped, or its machine was."""

    @contextmanager
    def over(self, tokens: int, expected_s: float) -> Iterator[None]:
        """Watch the step that runs inside, has so many tokens and should take about `expected_s`."""
        least_s = self._learnt_s if self._runs.has(tokens) else self._limit_s
        self._step = self._clock.now(), self._stood_still_s, max(least_s, MANY_TIMES * expected_s)
        try:
            yield
            self._runs.add(tokens)
        finally:
            self._step = None

    def look(self, every_s: float) -> str:
        """What `expired` says, asked every `every_s`: by how much that is late does not count as time of the step."""
        step, now = self._step, self._clock.now()
        late_s = 0.0 if self._looked is None else now - self._looked - every_s
        if step is not None and late_s > every_s:
            self._stood_still_s += min(late_s, now - step[0])
        self._looked = now
        return self.expired

    @property
    def expired(self) -> str:
        """What is wrong; empty if nothing is. Any thread may ask."""
        step = self._step
        if step is None:
            return ""
        began, stood_still_s, limit_s = step
        took_s = self._clock.now() - began - (self._stood_still_s - stood_still_s)
        if took_s <= limit_s:
            return ""
        return f"a step of this verifier hangs: it has run for {took_s:.1f} s, where {limit_s:.1f} s is the limit"
