"""Which nodes of one session are worth expanding, and in what order."""

from __future__ import annotations

import numpy as np

from specsplit.tree import ROOT, Flags, Ints, TokenTree, likeliest


class ExpandableNodes:
    """The nodes of a tree that may still be expanded, the likeliest first. Every node is taken once, or once after every commit."""

    def __init__(self, tree: TokenTree, width: int, max_depth: int, max_context: int) -> None:
        """width: nodes of one expansion. max_depth: levels below the root that a tree may have. max_context: positions of tokens."""
        self._tree = tree
        self._width = width
        self._floor = 0.0
        self.max_depth = max_depth
        """Levels below the root, from the next ranking on."""
        self._max_context = max_context
        self._taken = tree.attach(np.bool_, False)
        """True for nodes that were taken to be expanded, if nodes are redrawn since the latest commit."""
        self._known = tree.attach(np.bool_, False)
        """True for nodes that were taken at some time."""
        self._ranked: Ints | None = None
        """What `best` gives; None if the tree has changed since it was asked for."""

    def best(self, places: int) -> Ints:
        """List the likeliest, one expansion's at most, and not more new ones than there are places for their children.

        The root stands in an expansion without any other node of its session (see proposer.py), and needs no place.
        """
        if self._ranked is None:
            self._ranked = self._rank()
        if len(self._ranked) and self._ranked[0] == ROOT:
            return self._ranked[:1]
        new = self.new(self._ranked)
        return self._ranked.compress(~new | (new.cumsum() <= places))

    def new(self, slots: Ints) -> Flags:
        """Tell which of these never were taken [n]."""
        return ~self._known.data.take(slots)

    def take(self, slots: Ints) -> None:
        """Do not give these again."""
        self._taken.data[slots] = self._known.data[slots] = True
        self._ranked = None

    def give_back_root(self) -> None:
        """Give the root again, although it was taken."""
        self._taken.data[ROOT] = False
        self._ranked = None

    def give_back_all(self) -> None:
        """Give every node again, each one once its parent has been taken."""
        self._taken.data[:] = False
        self._ranked = None

    def changed(self, floor: float) -> None:
        """Rank afresh: nodes of the tree have come or gone. Below a log-survival of `floor` they are not worth it."""
        self._floor = floor
        self._ranked = None

    def _rank(self) -> Ints:
        tree = self._tree
        deepest = min(tree.root_position + self.max_depth, self._max_context - 1)
        worthwhile = tree.scores >= tree.root_score + self._floor
        worthwhile &= tree.positions < deepest
        taken = self._taken.data[: len(worthwhile)]
        ready = taken.take(tree.parents)
        ready[ROOT] = True
        worthwhile &= ready & ~taken
        slots = worthwhile.nonzero()[0]
        return likeliest(slots, tree.scores.take(slots), self._width)
