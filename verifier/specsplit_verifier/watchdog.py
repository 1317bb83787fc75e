"""Tells a step that hangs from one that is long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specsplit.clock import Clock

MANY_TIMES = 50
"""A step that takes so many times as long as steps of its size have taken hangs, if it takes the least limit too."""


class Watchdog:
    """Told of every step by the thread that has it run; any thread may ask."""

    def __init__(self, clock: Clock, least_s: float) -> None:
        self._clock = clock
        self._least_s = least_s
        self._step: tuple[float, float] | None = None
        """(when it began, how long it may take)."""

    @contextmanager
    def over(self, expected_s: float) -> Iterator[None]:
        """Watch the step that runs inside and should take about `expected_s`."""
        self._step = self._clock.now(), max(self._least_s, MANY_TIMES * expected_s)
        try:
            yield
        finally:
            self._step = None

    @property
    def barks(self) -> str:
        """What is wrong; empty if nothing is."""
        step, now = self._step, self._clock.now()
        if step is None or now - step[0] <= step[1]:
            return ""
        return (
            f"a step of this verifier hangs: it has run for {now - step[0]:.1f} s, where {step[1]:.1f} s is the limit"
        )
