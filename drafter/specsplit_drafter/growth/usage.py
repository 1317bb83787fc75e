"""What became of a drafter's expansions: which of them brought a node that was committed.

An expansion is *used* once a child of one of its nodes is committed as a node, accepted or the next root, that no later expansion has drawn
anew. The others are *wasted*, a few that are not decided yet apart. An expansion of several sessions is one, and one use is enough.

What is used of the nodes that were drawn ahead, roots not counted, is held against what their survivals promised. The ratio of the two
has all that a survival does not know: that the verifier takes no nodes so deep, that the pick was none of the children, that a head draws
them anew.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from specsplit.tree import ROOT, Ints, Scores

MOST_REMEMBERED: Final = 4096
"""Expansions, the latest, of which is known whether they were used."""
PRIOR: Final = 4.0
"""Uses that count as promised and as come beside those that were seen, so that a drafter that draws nothing ahead tries again."""
LEAST_USED: Final = 0.7
"""Share of expansions that is to be used, where they take cores from verifiers: two of three, and a little more."""
FORGETTING: Final = 0.99
"""Fades what was seen with every expansion."""


class Usage:
    """Counts a drafter's expansions, and those that were used, for all of its sessions."""

    def __init__(self) -> None:
        self.drawn = 0
        """Expansions that brought children; the number of the latest."""
        self.used = 0
        """Expansions of which a node was committed."""
        self._used: set[int] = set()
        self._promised = self._kept = 0.0
        """Uses that survivals promised of late, and those that came."""
        self._recent = self._recent_used = 0.0
        """Expansions of late, and those of them that were used."""

    def begin(self) -> None:
        """Count an expansion: what is drawn from now on is of it."""
        self.drawn += 1
        self._recent = FORGETTING * self._recent + 1.0
        self._recent_used *= FORGETTING
        self._promised *= FORGETTING
        self._kept *= FORGETTING
        if len(self._used) > MOST_REMEMBERED:
            self._used = {number for number in self._used if number > self.drawn - MOST_REMEMBERED}

    def draw(self, slots: Ints, survivals: Scores) -> Ints:
        """Note that these nodes [n] of one session are expanded -> a mark for each, for `use`."""
        ahead = slots != ROOT
        self._promised += float(survivals.compress(ahead).sum())
        return np.where(ahead, self.drawn, self.root_mark)

    @property
    def root_mark(self) -> int:
        """The mark of a root, and of every node of a tree that is drawn whole from it."""
        return -self.drawn

    def use(self, mark: int) -> None:
        """Note that a child of a node with this mark is committed."""
        number = abs(mark)
        if not number:
            return
        if mark > 0:
            self._kept += 1.0
        if number > self.drawn - MOST_REMEMBERED and number not in self._used:
            self._used.add(number)
            self.used += 1
            self._recent_used += 1.0

    @property
    def wasteful(self) -> bool:
        """True if fewer expansions were used of late than should be."""
        return self._recent_used < LEAST_USED * self._recent

    @property
    def ratio(self) -> float:
        """Uses that came of nodes drawn ahead, by those that their survivals promised: 1 at most."""
        return min(1.0, (self._kept + PRIOR) / (self._promised + PRIOR))
