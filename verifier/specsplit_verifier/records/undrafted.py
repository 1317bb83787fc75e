"""Steps of sessions by what kept drafts out of them."""

from __future__ import annotations

import math
from typing import Final

from specsplit.values import NoDrafts, NoDraftsCause

MOSTLY: Final = 0.9
"""A reason is told where so many of the steps had no drafts; of fewer it would say little."""
LATELY: Final = 256
"""Steps of sessions after which what a verifier counts is halved, so that it tells of what is lately."""


class Undrafted:
    """Counts the steps of one session, or of all of a verifier. Another thread may read."""

    def __init__(self, kept: float = math.inf) -> None:
        """`kept`: when there are so many steps, all counts are halved."""
        self._kept = kept
        self._steps = 0.0
        self._without = dict.fromkeys(NoDraftsCause, 0.0)

    def step(self, cause: NoDraftsCause | None) -> None:
        """A session has made a step. None: it had drafts."""
        self._steps += 1
        if cause is not None:
            self._without[cause] += 1
        if self._steps >= self._kept:
            self._steps /= 2
            for each in self._without:
                self._without[each] /= 2

    def reason(self, price: NoDrafts | None, *, planned: bool) -> NoDrafts | None:
        """What most of the steps without drafts had none for; None: too many had some, or there was no step.

        `price`: what nodes cost and bring where that was too little. `planned`: whoever rests does so because the plan has no drafts.
        """
        bare = sum(self._without.values())
        if not bare or bare < MOSTLY * self._steps:
            return None
        cause = max(self._without, key=self._without.__getitem__)
        if cause is NoDraftsCause.RESTING:
            cause = NoDraftsCause.PLAN if planned else self._led_to_rest
        found = price if cause is NoDraftsCause.PRICE and price is not None else NoDrafts(cause)
        return NoDrafts(found.cause, found.nodes, found.cost_ratio, found.tokens, rarely=bare < self._steps)

    @property
    def _led_to_rest(self) -> NoDraftsCause:
        """Why nothing was verified before the drafter was told to rest, as far as that was counted."""
        cause = max((NoDraftsCause.PRICE, NoDraftsCause.EMPTY, NoDraftsCause.MEMORY), key=self._without.__getitem__)
        return cause if self._without[cause] else NoDraftsCause.RESTING
