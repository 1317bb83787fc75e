"""The nodes of one session that may be expanded, in order."""

from __future__ import annotations

from typing import Final

import numpy as np

from specsplit.tree import ROOT, Flags, Ints, TokenTree, likeliest

_ROOT_ALONE: Final[Ints] = np.array([ROOT])
_NONE: Final[Ints] = np.empty(0, dtype=np.int64)


class ExpandableNodes:
    """The nodes of a tree that may still be expanded, likeliest first. Each is taken once, or with a kind that redraws once per commit."""

    def __init__(
        self,
        tree: TokenTree,
        width: int,
        max_depth: int,
        max_context: int,
        *,
        shares_root: bool = False,
        any_order: bool = False,
    ) -> None:
        """width: nodes of one expansion. max_depth: levels below the root that a tree may have. max_context: positions of tokens.

        shares_root: as a Proposer has it. any_order: nodes are expanded whatever has become of their parents.
        """
        self._tree = tree
        self._width = width
        self._floor = 0.0
        self.max_depth = max_depth
        """Levels below the root, from the next ranking on."""
        self._max_context = max_context
        self._shares_root = shares_root
        self.any_order: Final = any_order
        """True if nodes are expanded whatever has become of their parents."""
        self._taken = tree.attach(np.bool_, False)
        """True for nodes that were taken to be expanded; where nodes are redrawn, since the latest commit."""
        self._ever_taken = tree.attach(np.bool_, False)
        """True for nodes that were ever taken."""
        self._first_taken: Ints = np.empty(0, dtype=np.int64)
        """Nodes of the latest `take` that never were taken before."""
        self._parents_first = False
        self._ranked: Ints | None = None
        """The nodes that may be taken, ranked; None if the tree has changed since."""

    @property
    def deepest(self) -> int:
        """Position from which on no node is expanded."""
        return min(self._tree.root_position + self.max_depth, self._max_context - 1)

    def best(self, places: int) -> Ints:
        """List the likeliest nodes, one expansion's at most, with no more new ones than `places` for their children.

        The root needs no place. Its children are never expanded together with it, and with most kinds no node is (see proposer.py).
        """
        if self._ranked is None:
            self._ranked = self._rank()
        if len(self._ranked) <= places:
            return self._ranked
        new = self.never_taken(self._ranked) & (self._ranked != ROOT)
        return self._ranked.compress(~new | (new.cumsum() <= places))

    def never_taken(self, slots: Ints) -> Flags:
        """Tell which of these never were taken [n]."""
        return ~self._ever_taken.data.take(slots)

    def takeable(self, slots: Ints) -> Flags:
        """Tell which of these may still be taken [n]."""
        return ~self._taken.data.take(slots)

    def take(self, slots: Ints) -> None:
        """Take these: `best` does not list them again."""
        self._first_taken = slots.compress(self.never_taken(slots))
        self._taken.data[slots] = self._ever_taken.data[slots] = True
        self._ranked = None

    def put_back(self, slots: Ints) -> None:
        """Undo the latest `take`, of these nodes."""
        self._taken.data[slots] = self._ever_taken.data[self._first_taken] = False
        self._ranked = None

    def put_back_all(self, *, parents_first: bool) -> None:
        """Have every node taken again, each after its parent. New nodes wait for their parents only if `parents_first`."""
        self._taken.data[:] = False
        self._parents_first = parents_first
        self._ranked = None

    def invalidate(self, floor: float) -> None:
        """Rank anew, since nodes have come or gone. Nodes below a log-survival of `floor` are left out."""
        self._floor = floor
        self._ranked = None

    def _rank(self) -> Ints:
        tree = self._tree
        if self.max_depth == 1:  # no other node can be ready: what follows would say so in ten passes over the tree
            return _ROOT_ALONE if not self._taken.data[ROOT] and tree.root_position < self.deepest else _NONE
        worthwhile = tree.scores >= tree.root_score + self._floor
        worthwhile &= tree.positions < self.deepest
        ready = worthwhile & self._ready()
        if ready[ROOT] and not self.any_order:
            ready[ROOT + 1 :] &= self._shares_root & (tree.parents[ROOT + 1 :] != ROOT)
        slots = ready.nonzero()[0]
        return likeliest(slots, tree.scores.take(slots), self._width)

    def _ready(self) -> Flags:
        """Tell which may be taken: those taken before once their parents are taken again; new ones too, or unless that is to come."""
        parents = self._tree.parents
        taken, known = self._taken.data[: len(parents)], self._ever_taken.data[: len(parents)]
        if self.any_order:
            return ~taken
        again = known & ~taken & taken.take(parents)
        open_ = taken.take(parents) if self._parents_first else known.take(parents) & ~again.take(parents)
        ready = again | ~known & open_
        ready[ROOT] = not taken[ROOT]
        return ready
