"""Where the nodes of a tree that was drawn whole hang in the tree that is there: those that are nodes already stay what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from specsplit.tree import ROOT, Ints, Scores, TokenTree
from specsplit_drafter.drafts.proposer import WholeTree

_NOWHERE: Final = -1


class Rescored(NamedTuple):
    """Nodes and their new edges."""

    slots: Ints
    """[n], ascending."""
    edges: Scores


class PlacementLimits(NamedTuple):
    """What bounds the nodes that are made."""

    floor: float
    """Log-survival that a new node has at least."""
    levels: int
    """Levels below the root."""
    room: int
    """New nodes."""


class Placement(NamedTuple):
    """New nodes, as columns [n] in the order in which they are to be made, and what else is known by a drawn tree."""

    parents: Ints
    """Slots, those of new nodes among them: the first one gets `len(tree) + 1`."""
    tokens: Ints
    edges: Scores
    rescored: Rescored
    """Nodes that were there."""
    slots: Ints
    """[m] slots, once the new nodes are made, of the drawn nodes that are in the tree."""
    rows: Ints
    """[m] their rows in the drawn tree."""


def place(drawn: WholeTree, edges: Scores, tree: TokenTree, limits: PlacementLimits) -> Placement:
    """Find the place of each node of a drawn tree, whose candidates have these edges [n, c].

    Candidates of the first rows have what room there is; rows come likeliest first. A node that is not made has none below it. Trees
    like these are small: they are looked at node by node, in less time than arrays take.
    """
    found = _Found(tree)
    for above, token, candidates, own in zip(
        drawn.above, drawn.tokens, drawn.children.tokens.tolist(), edges.tolist(), strict=True
    ):
        slot = found.enter(above, token)
        if slot != _NOWHERE and found.depths[slot] < limits.levels:
            found.hang(slot, candidates, own, limits)
    return found.placement()


class _Found:
    """All nodes, those that were there and those that are to be made, by slot."""

    def __init__(self, tree: TokenTree) -> None:
        parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
        self._slots = {pair: slot for slot, pair in enumerate(zip(parents, tokens, strict=True)) if slot != ROOT}
        """By slot of the parent and token."""
        self._survivals: list[float] = (tree.scores - tree.root_score).tolist()
        self.depths: list[int] = (tree.positions - tree.root_position).tolist()
        """Levels below the root."""
        self._edges: list[float] = tree.edges.tolist()
        self._new: list[tuple[int, int]] = []
        """Parent and token of those that are to be made."""
        self._rescored: dict[int, float] = {}
        self._entered: list[int] = []
        """Slots by row of the drawn tree."""

    def enter(self, above: int, token: int) -> int:
        """Look up the slot of the next row's node; -1 if it is no node."""
        slot = ROOT if not self._entered else self._slots.get((self._entered[above], token), _NOWHERE)
        self._entered.append(slot)
        return slot

    def hang(self, slot: int, candidates: Sequence[int], edges: Sequence[float], limits: PlacementLimits) -> None:
        """Make nodes of the candidates of a node that are likely enough, and look which were there."""
        for token, edge in zip(candidates, edges, strict=True):
            survival = self._survivals[slot] + edge
            child = self._slots.get((slot, token))
            if child is not None:
                self._survivals[child] = survival
                if self._edges[child] != edge:
                    self._rescored[child] = edge
            elif survival >= limits.floor and len(self._new) < limits.room:
                self._slots[slot, token] = len(self._edges)
                self._survivals.append(survival)
                self.depths.append(self.depths[slot] + 1)
                self._edges.append(edge)
                self._new.append((slot, token))

    def placement(self) -> Placement:
        """Collect what was found."""
        new = np.array(self._new, dtype=np.int64).reshape(-1, 2)
        rescored = sorted(self._rescored.items())
        entered = np.array(self._entered)
        rows = (entered != _NOWHERE).nonzero()[0]
        return Placement(
            new[:, 0],
            new[:, 1],
            np.array(self._edges[len(self._edges) - len(new) :]),
            Rescored(
                np.array([slot for slot, _ in rescored], dtype=np.int64), np.array([edge for _, edge in rescored])
            ),
            entered.take(rows),
            rows,
        )
