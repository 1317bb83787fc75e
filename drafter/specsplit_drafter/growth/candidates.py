"""Candidates: children of expanded nodes that are no nodes yet. The calibration learns from those that the target picked.

A candidate becomes a node when its survival is above a floor and there is room. One that is not likely enough is kept: when a commit
makes one of its ancestors the root, its survival rises, and it may become a node without another forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from specsplit.tree import ROOT, Flags, Ints, Scores, TokenTree, as_sent
from specsplit_drafter.drafts.calibration import DistanceCalibration
from specsplit_drafter.drafts.proposer import Children, WholeTree
from specsplit_drafter.growth.placement import Placement, PlacementLimits, Rescored, place
from specsplit_drafter.growth.usage import Usage

NO_NODES: Final[Ints] = np.empty(0, dtype=np.int64)
NO_EDGES: Final[Scores] = np.empty(0)
_NOT_EXPANDED: Final = -1


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one session, as columns [n]. Those of one parent stand likeliest first."""

    parents: Ints
    """Slots in the session's tree."""
    tokens: Ints
    edges: Scores
    """Edges, rounded as they travel."""

    @staticmethod
    def none() -> Candidates:
        """Make an empty set."""
        return Candidates(NO_NODES, NO_NODES, NO_EDGES)

    @staticmethod
    def of(slots: Ints, children: Children, edges: Scores, tree: TokenTree) -> Candidates:
        """Make candidates of the children of these nodes, whose edges [n, c] are calibrated, but for those that are nodes already."""
        tokens, parents = children.tokens.ravel(), slots.repeat(children.tokens.shape[1])
        found = Candidates(parents, tokens, edges.ravel())
        return found.where(np.isfinite(children.log_probabilities.ravel()) & ~tree.holds(parents, tokens))

    def at(self, places: Ints) -> Candidates:
        """Select those at these places [m], in that order."""
        return Candidates(self.parents.take(places), self.tokens.take(places), self.edges.take(places))

    def without(self, places: Ints) -> Candidates:
        """Select all but those at these places."""
        left = np.ones(len(self.parents), dtype=np.bool_)
        left[places] = False
        return self.where(left)

    def where(self, chosen: Flags) -> Candidates:
        """Select those for which `chosen` [n] is true."""
        return self if np.count_nonzero(chosen) == len(chosen) else self.at(chosen.nonzero()[0])

    def merged_with(self, others: Candidates) -> Candidates:
        """Join these and others, of other parents."""
        if not len(self.parents):
            return others
        return Candidates(
            np.concatenate((self.parents, others.parents)),
            np.concatenate((self.tokens, others.tokens)),
            np.concatenate((self.edges, others.edges)),
        )

    def likeliest(self, tree: TokenTree, floor: float, count: int) -> Ints:
        """Find the places of those that score at least `floor`, `count` at most: best first, of equals the one whose parent came first."""
        scores = tree.scores.take(self.parents) + self.edges
        places = (scores >= floor).nonzero()[0]
        falling = -scores.take(places)
        order = falling.argsort()
        ranked = falling.take(order)
        if np.count_nonzero(ranked[1:] == ranked[:-1]):
            order = np.lexsort((self.parents.take(places), falling))
        return places.take(order[: max(count, 0)])

    def remapped(self, slots: Ints, lowest: int) -> Candidates:
        """Apply a reroot that gave every slot a new one, or -1: candidates whose parents are below slot `lowest` now are dropped."""
        parents = slots.take(self.parents)
        alive = (parents >= lowest).nonzero()[0]
        return Candidates(parents.take(alive), self.tokens.take(alive), self.edges.take(alive))


class CandidatePool:
    """One session's candidates, and the raw children of every expanded node."""

    def __init__(
        self, tree: TokenTree, calibration: DistanceCalibration, usage: Usage | None = None, *, held: bool = False
    ) -> None:
        """`held`: children are those that a constraint leaves."""
        self._tree = tree
        self._held = held
        self._calibration = calibration
        self._candidates = Candidates.none()
        self._expansions = tree.attach(np.object_, None)
        """The Children of the whole expansion in which the node was expanded."""
        self._rows = tree.attach(np.int64, 0)
        """The node's row in them."""
        self._distances = tree.attach(np.int64, _NOT_EXPANDED)
        """Guessed states between the node and the last true feature, when it was expanded: one more than its parent had then."""
        self._usage = usage or Usage()
        self._marks = tree.attach(np.int64, 0)
        """What the usage calls the latest expansion of the node."""

    def distances(self, slots: Ints) -> Ints:
        """Count the guessed states between nodes that are to be expanded and the last true feature [n]."""
        return np.where(slots == ROOT, 0, self._distances.data.take(self._tree.parents.take(slots)) + 1)

    def add(self, slots: Ints, children: Children, distances: Ints) -> Rescored:
        """Take in the children of nodes at these distances [n] that were expanded together. They replace those that some of them had.

        Returns the new edges of children that are nodes already.
        """
        tree = self._tree
        again = slots.compress(self._distances.data.take(slots) != _NOT_EXPANDED)
        kept = Children(
            children.tokens, children.log_probabilities
        )  # without its levels, which would be kept alive by it
        self._expansions.data[slots], self._distances.data[slots] = kept, distances
        self._rows.data[slots] = np.arange(len(slots))
        self._marks.data[slots] = self._usage.draw(slots, np.exp(tree.log_survivals(slots)))
        edges = as_sent(self._calibration.log_probabilities(children.log_probabilities, distances))
        if len(again):
            self._candidates = self._candidates.where(~np.isin(self._candidates.parents, again))
        self._candidates = self._candidates.merged_with(Candidates.of(slots, children, edges, tree))
        if not len(again) or not edges.size:
            return Rescored(NO_NODES, NO_EDGES)
        return self._rescored(again, children, edges)

    def _rescored(self, parents: Ints, children: Children, edges: Scores) -> Rescored:
        """Compute new edges of the nodes below these. A node that is not among the new children gets the least of their edges at most."""
        tree, slots = self._tree, self._tree.below(parents)
        rows = self._rows.data.take(tree.parents.take(slots))
        same = children.tokens.take(rows, axis=0) == tree.tokens.take(slots)[:, None]
        least = np.where(np.isfinite(children.log_probabilities), edges, 0.0).min(axis=1, initial=0.0)
        old = tree.scores.take(slots) - tree.scores.take(tree.parents.take(slots))
        drawn = edges[rows, same.argmax(axis=1)]
        new = np.where(same.any(axis=1), drawn, np.minimum(old, least.take(rows)))
        changed = new != old
        return Rescored(slots.compress(changed), new.compress(changed))

    def place(self, drawn: WholeTree, limits: PlacementLimits) -> Placement:
        """Find what is to become of a tree that was drawn below the root; `expanded` must follow once its nodes are there."""
        distances = np.zeros(len(drawn.tokens), dtype=np.int64)
        return place(
            drawn,
            as_sent(self._calibration.log_probabilities(drawn.children.log_probabilities, distances)),
            self._tree,
            limits,
        )

    def expanded(self, slots: Ints, rows: Ints, children: Children) -> None:
        """Keep the children [n, c] of the nodes of a tree that was drawn whole: row `rows[i]` is of the node `slots[i]`."""
        self._expansions.data[slots], self._rows.data[slots], self._distances.data[slots] = children, rows, 0
        self._marks.data[slots] = self._usage.root_mark

    @property
    def shifts(self) -> Scores:
        """The calibration of edges, by distance and rank (calibration.py)."""
        return self._calibration.shifts

    def take(self, count: int, floor: float) -> Candidates:
        """Remove and return those above a floor of log-survival, `count` at most, likeliest first, to become nodes."""
        chosen = self._candidates.likeliest(self._tree, self._tree.root_score + floor, count)
        found = self._candidates.at(chosen)
        if len(chosen):
            self._candidates = self._candidates.without(chosen)
        return found

    def learn(self, slot: int, pick: int) -> None:
        """Have calibration and usage observe what the target picked behind a node, if the node was expanded."""
        expansion: Children | None = self._expansions.data[slot]
        if expansion is None:
            return
        if self._tree.child(slot, pick) is not None:
            self._usage.use(int(self._marks.data[slot]))
        row = self._rows.data[slot]
        raw = expansion.log_probabilities[row]
        possible = np.isfinite(raw).nonzero()[0]  # not what the session's filters forbid
        if len(possible):
            picked = (expansion.tokens[row].take(possible) == pick).nonzero()[0]
            distance = int(self._distances.data[slot])
            self._calibration.observe(raw.take(possible), int(picked[0]) if len(picked) else None, distance)

    def forced_levels(self) -> int:
        """Count the levels from the root down, as far as they were expanded, at which a constraint leaves one token alone."""
        tree, slot, levels = self._tree, ROOT, 0
        if not self._held:
            return 0
        while (expansion := self._expansions.data[slot]) is not None:
            row = self._rows.data[slot]
            raw = expansion.log_probabilities[row]
            alone = np.count_nonzero(np.isfinite(raw)) == 1 and raw[0] == 0.0
            below = tree.child(slot, int(expansion.tokens[row, 0])) if alone else None
            if below is None:
                break
            slot, levels = below, levels + 1
        return levels

    def remap(self, slots: Ints | None, *, redraws_root: bool) -> None:
        """Apply a reroot that gave every slot a new one, or -1; None if nothing survived.

        redraws_root: the root's candidates are dropped, since it will be expanded again.
        """
        self._candidates = Candidates.none() if slots is None else self._candidates.remapped(slots, ROOT + redraws_root)
