"""The grows of one session that are not sent yet.

A message takes a verifier some 0.2 ms, whatever is in it, so grows gather. The first behind an open, a commit or a plan leaves at once: the
verifier may be waiting for it. The next ones leave a fifth of the window apart, which is the time in which an answer still reaches the
next step. What is grown last, before the session rests, leaves at once again.

A step may take far longer than the last one did. So behind one event only `FREE_GROWS` grows leave
freely, however fast the drafter is: from the 24th on each holds at least half as much as all before it.

Worked example: steps take 20 ms, the round trip 5 ms, an expansion 1 ms. The window is 15 ms, so the children of the first expansion leave
at once, and those of three at a time after that. 24 grows of 10 nodes each hold 240: the next one waits for 120 more, and the one behind
it for another 180.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from specsplit.speculation import Grow

SPACING: Final = 0.2
"""Share of the window between one grow and the next."""
FREE_GROWS: Final = 24
"""Grows that leave however little they hold."""


class UnsentGrows:
    """Grows that wait to be sent: one for every commit that came meanwhile, and those made since."""

    def __init__(self) -> None:
        self._sealed: list[Grow] = []
        """Grows made before the latest commit, one for each commit."""
        self._open: list[Grow] = []
        """Grows made since the latest commit."""
        self._sent_resting = False
        self._next_send = -math.inf
        """When the next grow may leave."""
        self._sent_grows = 0
        """Grows sent since the latest event of the verifier."""
        self._sent_items = 0
        """Nodes and new edges in these."""
        self._unsent_items = 0
        """Nodes and new edges that are not sent."""

    def add(self, grow: Grow) -> None:
        """Keep a grow until `take`."""
        self._open.append(grow)
        self._unsent_items += len(grow.ids) + len(grow.rescored)

    def mark_busy(self) -> None:
        """Have resting sent again once the session rests: there has been work since."""
        self._sent_resting = False

    def reset_spacing(self) -> None:
        """Have the next grow leave at once: it answers an event of the verifier."""
        self._sent_resting = False
        self._next_send = -math.inf
        self._sent_grows = self._sent_items = 0

    def seal(self) -> None:
        """Begin a new grow, before a commit is applied: a grow names the commits before it."""
        if self._open:
            self._sealed.append(Grow.merge(self._open))
            self._open = []
            self._unsent_items = 0
        self.reset_spacing()

    def take(self, commits: int, resting: bool, now: float, window_s: float, *, whole: bool) -> list[Grow]:
        """Take the grows that are to be sent now, in order: at most one per commit. That the session rests is sent once.

        whole: what was grown since the latest commit leaves only once the session rests.
        """
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
        """True if too little waits to be sent, next to what was sent."""
        return self._sent_grows >= FREE_GROWS and 2 * self._unsent_items < self._sent_items
