"""What one session's verifier has not been told yet.

A message takes a verifier some 0.2 ms, whatever is in it, so grows gather. The first behind an open, a commit or a plan leaves at once: the
verifier may be waiting for it. The next ones leave a fifth of the window apart, which is the time in which an answer still reaches the
next step. What is grown last, before the session rests, leaves at once again.

A step may take far longer than the last one did. So behind one event there are `FREE_GROWS` grows freely, however fast the drafter is:
from the 24th on each adds at least half of what those before it told.

Worked example: steps take 20 ms, the round trip 5 ms, an expansion 1 ms. The window is 15 ms, so the children of the first expansion leave
at once, and those of three at a time after that. 24 grows of 10 nodes each tell of 240: the next one waits for 120 more, and the one behind
it for another 180.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from specsplit.speculation import Grow

SPACING: Final = 0.2
"""Share of the window that is between one grow and the next."""
FREE_GROWS: Final = 24
"""Grows that leave however little they tell of."""


class UnsentGrows:
    """Grows on their way out: one for every commit that came meanwhile, and those since."""

    def __init__(self) -> None:
        self._sealed: list[Grow] = []
        """Grows made before the latest commit, one for each commit."""
        self._open: list[Grow] = []
        """Grows made since the latest commit."""
        self._sent_resting = False
        self._next_send = -math.inf
        """When the next grow may leave."""
        self._sent_grows = 0
        """Grows told since the verifier asked for some."""
        self._sent_items = 0
        """Nodes and new edges in these."""
        self._unsent_items = 0
        """Nodes and new edges that are not told."""

    def add(self, grow: Grow) -> None:
        """Keep what was grown until `take`."""
        self._open.append(grow)
        self._unsent_items += len(grow.ids) + len(grow.rescored)

    def mark_busy(self) -> None:
        """Forget that the verifier was told of rest: there has been work since."""
        self._sent_resting = False

    def reset_spacing(self) -> None:
        """Answer the verifier, which has said something, as soon as there is something to say."""
        self._sent_resting = False
        self._next_send = -math.inf
        self._sent_grows = self._sent_items = 0

    def seal(self) -> None:
        """Begin a new grow, before a commit is applied: the mirror must be able to tell what was made before it."""
        if self._open:
            self._sealed.append(Grow.merge(self._open))
            self._open = []
            self._unsent_items = 0
        self.reset_spacing()

    def take(self, commits: int, resting: bool, now: float, window_s: float, *, whole: bool) -> list[Grow]:
        """Take what is to be told now, in order: at most one grow per commit, and rest once. whole: only when nothing more will come."""
        grows, self._sealed = self._sealed, []
        waits = not resting and (whole or now < self._next_send or self._too_little)
        if waits or (not self._open and (self._sent_resting or not resting)):
            return grows
        grow = Grow.merge(self._open) if self._open else Grow(commits)
        self._open = []
        self._sent_resting = resting
        self._next_send = now + SPACING * window_s
        self._sent_grows += 1
        self._sent_items, self._unsent_items = self._sent_items + self._unsent_items, 0
        return [*grows, replace(grow, resting=True) if resting else grow]

    @property
    def _too_little(self) -> bool:
        """True if what is kept is to become more first, next to what was told."""
        return self._sent_grows >= FREE_GROWS and 2 * self._unsent_items < self._sent_items
