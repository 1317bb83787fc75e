"""A token tree in arrays: one root, nodes below it, cheap to grow in bulk, to reroot in the middle and to take the best of.

The worked example of docs/tree.md, committed `the cat`, root `cat`:

    cat ─ 1 sat ─ 3 on ─ 5 the ─ 7 mat
        │       └ 4 in
        └ 2 is  ─ 6 a

    slot      0    1    2    3    4    5    6    7
    id        0    1    2    3    4    5    6    7
    token   cat  sat   is   on   in  the    a  mat
    parent   -1    0    0    1    1    3    2    5
    position  1    2    2    3    3    4    3    5
    score     0 -0.1 -0.3 -0.2 -0.5 -0.4 -0.6 -0.7

A *slot* is a node's place in the columns. The root has slot 0; the others follow in the order in which they came, which is the order of
their ids, so parents stand before children. A reroot moves the survivors to the front in the same order: slots hold until then. Nothing
is an object of its own, so an operation costs a few passes over a column and not something for every node
(docs/adr/0007-trees-in-arrays.md). `Node` is for those who look at a tree.

Scores are natural logs of survival. They are counted from the last root that was not itself a node, and are never rebased when the
tree is rerooted: the survival of a node *now* is its score less the root's. So a score is written once, and two copies of a tree can
be compared bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from specsplit.tree.choice import best
from specsplit.tree.columns import ID, NO_SLOTS, PARENT, POSITION, ROOT, TOKEN, Columns, Flags, Ints, Scores
from specsplit.tree.edges import edges
from specsplit.tree.node import Node

_LEVELS: Final = 16
"""New nodes that hang deeper below one another are placed one by one."""


class TokenTree(Columns):
    """A root and the live nodes below it."""

    @property
    def root(self) -> Node:
        """The root as a Node, for those who look."""
        return self.look(ROOT, None)

    @property
    def nodes(self) -> dict[int, Node]:
        """The live nodes by id, for those who look: they are made afresh each time."""
        return {node.id: node for node in sorted(self.root.descendants(), key=lambda node: node.id)}

    def look(self, slot: int, parent: Node | None) -> Node:
        """Make the Node of a slot, for those who look; `parent` is the one of the slot above it."""
        return Node(self, self._id[slot], self._token[slot], self._score[slot], self._position[slot], parent)

    def family(self) -> dict[int, list[int]]:
        """List every node's children, slots by slot, likeliest first, of equals the first to come. It costs by the node."""
        family: dict[int, list[int]] = {}
        scores, parents = self.scores.tolist(), self.parents.tolist()
        for slot in sorted(range(1, self._count), key=lambda slot: -scores[slot]):
            family.setdefault(parents[slot], []).append(slot)
        return family

    def child(self, slot: int, token: int) -> int | None:
        """Look up the child of a slot with this token; None if there is none."""
        if not self._is_above[slot]:
            return None
        found = ((self.parents == slot) & (self.tokens == token)).nonzero()[0]
        return int(found[0]) if len(found) else None

    def edges_below(self, slots: Iterable[int]) -> set[int]:
        """Collect the `edge` to every child of these slots."""
        inner = [slot for slot in slots if self._is_above[slot]]
        if not inner:
            return set()
        children = self.below(inner)
        return set(edges(self.parents.take(children), self.tokens.take(children)).tolist())

    def path(self, slot: int) -> list[int]:
        """List the slots from below the root down to this one; none for the root."""
        found: list[int] = []
        while slot != ROOT:
            found.append(slot)
            slot = self._parent[slot]
        return found[::-1]

    def name_root(self, node_id: int, score: float) -> None:
        """Give a root that was no node, and has nothing below it yet, the id and the score of the node that it turns out to be."""
        self._id[ROOT], self._score[ROOT] = node_id, score

    def add(self, parent: int, node_id: int, token: int, score: float) -> int:
        """Hang a node below slot `parent`, which must have no child with that token, and return its slot. Its id is above all others."""
        slot = self._count
        if slot == len(self._id):
            self.reserve(slot + 1)
        self._id[slot], self._token[slot], self._parent[slot] = node_id, token, parent
        self._position[slot], self._score[slot] = self._position[parent] + 1, score
        self._is_above[parent] = True
        self._count = slot + 1
        return slot

    def extend(self, ids: Ints, parents: Ints, tokens: Ints, scores: Scores) -> bool:
        """Hang many nodes at once, [n] each. A parent is a slot; those from `len(self) + 1` on are of the nodes that come.

        False, and nothing has changed, if a score is not finite or above the parent's, or a parent would have a token twice.
        """
        start, stop = self._count, self._count + len(parents)
        self.reserve(stop)
        numbers = self._numbers
        numbers[ID, start:stop], numbers[TOKEN, start:stop], numbers[PARENT, start:stop] = ids, tokens, parents
        self._scores[start:stop] = scores
        falling = (scores <= self._scores.take(parents)) & (scores > -math.inf)
        if np.count_nonzero(falling) < len(parents) or self._clash(parents, tokens):
            return False
        self._place(start, parents)
        self._above[parents] = True
        self._count = stop
        return True

    def _place(self, start: int, parents: Ints) -> None:
        """Write the positions of the nodes from slot `start` on, below these parents, some of which come with their children."""
        positions, new = self._numbers[POSITION], self._numbers[POSITION, start : start + len(parents)]
        new[:] = positions.take(parents) + 1
        if not np.count_nonzero(parents >= start):
            return
        for _ in range(_LEVELS):  # each time a level more is right
            right = positions.take(parents) + 1
            if np.count_nonzero(right == new) == len(new):
                return
            new[:] = right
        for slot, parent in enumerate(parents.tolist(), start):
            self._position[slot] = self._position[parent] + 1

    def holds(self, parents: Ints, tokens: Ints) -> Flags:
        """Tell for each slot and token whether the slot has a child with that token [n]."""
        old = self._edges_below(parents)
        return np.isin(edges(parents, tokens), old) if len(old) else np.zeros(len(parents), dtype=np.bool_)

    def _clash(self, parents: Ints, tokens: Ints) -> bool:
        """Tell whether new nodes would give a parent the same token twice."""
        new, old = edges(parents, tokens), self._edges_below(parents)
        if len(old):
            new = np.concatenate((new, old))
        new.sort()
        return bool(np.count_nonzero(new[1:] == new[:-1]))

    def _edges_below(self, parents: Ints) -> Ints:
        """Collect the `edge` to every live child of these slots, some of which may be of nodes to be."""
        inner = parents.compress((parents < self._count) & self._above.take(parents))
        if not len(inner):
            return NO_SLOTS
        children = self.below(inner)
        return edges(self.parents.take(children), self.tokens.take(children))

    def reroot(self, deepest: int, bonus: int) -> Ints | None:
        """Make the child of slot `deepest` with token `bonus` the root (a hit), or a fresh root if there is none (a miss).

        After a hit: the new slot of every old one [n], -1 for the dead. After a miss: None.
        """
        heir = self.child(deepest, bonus)
        self._remember()
        if heir is None:
            self._restart(bonus, self._position[deepest] + 1)
            return None
        return self._keep(self._descent(heir))

    def _descent(self, heir: int) -> Ints:
        """List the slots of a node and of all below it, ascending.

        Every node that came later looks up to its parent, then to its parent's parent and so on, twice as far each time. In the
        numbering used here the heir is 1; whatever does not hang below it ends at 0.
        """
        above = np.maximum(self.parents[heir - 1 :] - (heir - 1), 0)
        above[:2] = 0, 1
        levels = int(self.positions[heir:].max()) - self._position[heir]
        for _ in range(max(0, levels).bit_length()):
            above = above.take(above)
        return (above == 1).nonzero()[0] + (heir - 1)

    def best(self, count: int, topk: int, depth: int) -> list[int]:
        """Choose what a step takes: the root and the best-scored nodes below it, `count` slots in all at most; see `choice.best`."""
        return best(self, count, topk, depth)

    def snapshot(self) -> tuple[int, int, dict[int, tuple[int, int, float]]]:
        """Describe the tree as (root id, root token, {id: (parent id, token, score)}), which is equal for equal trees."""
        ids = self.ids.tolist()
        rows = zip(ids, self.parents.tolist(), self.tokens.tolist(), self.scores.tolist(), strict=True)
        described = {node_id: (ids[parent], token, score) for node_id, parent, token, score in rows if parent >= 0}
        return self.root_id, self._token[ROOT], described
