"""Children of expanded nodes that are no nodes themselves: not likely enough yet, or there was no room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsplit.tree import Flags, Ints, Scores, TokenTree
from specsplit_drafter.calibration import Calibration
from specsplit_drafter.proposer import Children


@dataclass(frozen=True, slots=True)
class Candidates:
    """Of one session, as columns [n]. Those of one parent stand likeliest first."""

    parents: Ints
    """Slots in the session's tree."""
    tokens: Ints
    scores: Scores
    """As they travel: float32, at most the parent's."""

    @staticmethod
    def none() -> Candidates:
        """No candidates."""
        return Candidates(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))

    @staticmethod
    def of(slots: Ints, children: Children, tree: TokenTree, calibration: Calibration) -> Candidates:
        """The children of these nodes, calibrated in one go, but for those that are nodes already."""
        tokens, raw = children.tokens.ravel(), children.log_probabilities.ravel()
        parents = slots.repeat(children.tokens.shape[1])
        own = tree.scores.take(parents)
        scores = np.minimum((own + calibration.log_probabilities(raw)).astype(np.float32), own.astype(np.float32))
        found = Candidates(parents, tokens, scores.astype(np.float64))
        return found.where(np.isfinite(raw) & ~tree.holds(parents, tokens))

    def at(self, places: Ints) -> Candidates:
        """Those at these places [m], in that order."""
        return Candidates(self.parents.take(places), self.tokens.take(places), self.scores.take(places))

    def without(self, places: Ints) -> Candidates:
        """All but those at these places."""
        left = np.ones(len(self.parents), dtype=np.bool_)
        left[places] = False
        return self.where(left)

    def where(self, chosen: Flags) -> Candidates:
        """Those of which [n] is true."""
        return self if np.count_nonzero(chosen) == len(chosen) else self.at(chosen.nonzero()[0])

    def beside(self, others: Candidates) -> Candidates:
        """These and others, of other parents."""
        if not len(self.parents):
            return others
        return Candidates(
            np.concatenate((self.parents, others.parents)),
            np.concatenate((self.tokens, others.tokens)),
            np.concatenate((self.scores, others.scores)),
        )

    def likeliest(self, floor: float, count: int) -> Ints:
        """Places of those that score at least `floor`, `count` at most: best first, of equals the one whose parent came first."""
        places = (self.scores >= floor).nonzero()[0]
        falling = -self.scores.take(places)
        order = falling.argsort()
        ranked = falling.take(order)
        if np.count_nonzero(ranked[1:] == ranked[:-1]):
            order = np.lexsort((self.parents.take(places), falling))
        return places.take(order[: max(count, 0)])

    def moved(self, slots: Ints, lowest: int) -> Candidates:
        """After a reroot that gave every slot a new one, or -1: those whose parents are not below slot `lowest`."""
        parents = slots.take(self.parents)
        alive = (parents >= lowest).nonzero()[0]
        return Candidates(parents.take(alive), self.tokens.take(alive), self.scores.take(alive))
