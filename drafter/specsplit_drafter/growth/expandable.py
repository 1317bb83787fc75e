"""Which nodes of one session are worth expanding, and in what order."""

from __future__ import annotations

import numpy as np

from specsplit.tree import ROOT, Flags, Ints, TokenTree, likeliest


class ExpandableNodes:
    """The nodes of a tree that may still be expanded, the likeliest first. Every node is taken once, or once after every commit."""

    def __init__(
        self, tree: TokenTree, width: int, max_depth: int, max_context: int, *, shares_root: bool = False
    ) -> None:
        """width: nodes of one expansion. max_depth: levels below the root that a tree may have. max_context: positions of tokens.

        shares_root: as a Proposer has it.
        """
        self._tree = tree
        self._width = width
        self._floor = 0.0
        self.max_depth = max_depth
        """Levels below the root, from the next ranking on."""
        self._max_context = max_context
        self._shares_root = shares_root
        self._taken = tree.attach(np.bool_, False)
        """True for nodes that were taken to be expanded, if nodes are redrawn since the latest commit."""
        self._ever_taken = tree.attach(np.bool_, False)
        """True for nodes that were taken at some time."""
        self._first_taken: Ints = np.empty(0, dtype=np.int64)
        """Nodes of the latest `take` that never were taken before."""
        self._parents_first = False
        self._ranked: Ints | None = None
        """What `best` gives; None if the tree has changed since it was asked for."""

    @property
    def deepest(self) -> int:
        """Position from which on nothing is expanded."""
        return min(self._tree.root_position + self.max_depth, self._max_context - 1)

    def best(self, places: int) -> Ints:
        """List the likeliest, one expansion's at most, and not more new ones than there are places for their children.

        The root needs no place. No child of it stands in an expansion with it, and with most kinds no node at all (see proposer.py).
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
        """Do not give these again."""
        self._first_taken = slots.compress(self.never_taken(slots))
        self._taken.data[slots] = self._ever_taken.data[slots] = True
        self._ranked = None

    def put_back(self, slots: Ints) -> None:
        """Give these again, which were taken last."""
        self._taken.data[slots] = self._ever_taken.data[self._first_taken] = False
        self._ranked = None

    def put_back_all(self, *, parents_first: bool) -> None:
        """Give every node again, each one once its parent has been taken. New ones wait for that only if `parents_first`."""
        self._taken.data[:] = False
        self._parents_first = parents_first
        self._ranked = None

    def invalidate(self, floor: float) -> None:
        """Rank afresh: nodes of the tree have come or gone. Below a log-survival of `floor` they are not worth it."""
        self._floor = floor
        self._ranked = None

    def _rank(self) -> Ints:
        tree = self._tree
        worthwhile = tree.scores >= tree.root_score + self._floor
        worthwhile &= tree.positions < self.deepest
        ready = worthwhile & self._ready()
        if ready[ROOT]:
            ready[ROOT + 1 :] &= self._shares_root & (tree.parents[ROOT + 1 :] != ROOT)
        slots = ready.nonzero()[0]
        return likeliest(slots, tree.scores.take(slots), self._width)

    def _ready(self) -> Flags:
        """Tell which may be taken: known ones again once their parents have been; new ones too, or unless their parents are about to be."""
        parents = self._tree.parents
        taken, known = self._taken.data[: len(parents)], self._ever_taken.data[: len(parents)]
        again = known & ~taken & taken.take(parents)
        open_ = taken.take(parents) if self._parents_first else known.take(parents) & ~again.take(parents)
        ready = again | ~known & open_
        ready[ROOT] = not taken[ROOT]
        return ready
