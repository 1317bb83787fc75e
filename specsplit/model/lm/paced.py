"""A paced device: a forward takes at least as long as a measured cost curve says.

So protocol, overlap and control can be exercised at the time scales of a large accelerator on a small machine. Figures made this
way have to say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from specsplit.clock import Clock


@dataclass(frozen=True)
class CostCurve:
    """What one forward costs by the number of its tokens: a straight line."""

    base_ms: float = 0.0
    per_token_us: float = 0.0

    def seconds(self, num_tokens: int) -> float:
        """Time of a forward of `num_tokens`."""
        return self.base_ms / 1e3 + num_tokens * self.per_token_us / 1e6


class Paced:
    """Stretches what happens inside `step` to the curve. It sleeps on the calling (engine) thread."""

    def __init__(self, curve: CostCurve, clock: Clock, sleep: Callable[[float], None] = time.sleep) -> None:
        self._curve = curve
        self._clock = clock
        self._sleep = sleep

    @property
    def is_free(self) -> bool:
        """True if nothing is stretched."""
        return self._curve == CostCurve()

    @contextmanager
    def step(self, num_tokens: int) -> Iterator[None]:
        """The block returns no sooner than a forward of `num_tokens` would; if it raises, at once."""
        until = self._clock.now() + self._curve.seconds(num_tokens)
        yield
        rest = until - self._clock.now()
        if rest > 0:
            self._sleep(rest)
