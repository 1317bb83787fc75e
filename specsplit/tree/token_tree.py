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
    edge         -0.1 -0.3 -0.1 -0.4 -0.2 -0.3 -0.3
    score     0 -0.1 -0.3 -0.2 -0.5 -0.4 -0.6 -0.7

A *slot* is a node's place in the columns. The root has slot 0; the others follow in the order in which they came, which is the order of
their ids, so parents stand before children. A reroot moves the survivors to the front in the same order: slots hold until then. Nothing
is an object of its own, so an operation costs a few passes over a column and not something for every node
(docs/adr/0007-trees-in-arrays.md).

An *edge* is the natural log of the probability that a node is accepted, given that its parent is. A score is the sum of the edges down to
a node. Scores are not rebased when the tree is rerooted: the log-survival of a node *now* is its score less the root's, and its edge is
its score less its parent's. Both are exact (edges.py), so two copies of a tree can be compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from specsplit.tree.choice import best, best_of_few
from specsplit.tree.columns import ID, NO_SLOTS, PARENT, POSITION, ROOT, TOKEN, Columns, Flags, Ints, Scores
from specsplit.tree.edges import are_edges, rounded

_FEW: Final = 48
"""Up to so many nodes are looked at one by one in less time than a few calls for arrays take."""
_LEVELS: Final = 16
"""New nodes that hang deeper below one another are placed one by one."""
_UNPLACED: Final = -(1 << 32)
"""Position of a new node whose parent is not placed yet; one more for every level is still below 0."""


class TokenTree(Columns):
    """A root and the live nodes below it."""

    def child(self, slot: int, token: int) -> int | None:
        """Look up the child of a slot with this token; None if there is none."""
        if not self._is_above[slot]:
            return None
        if self._count <= _FEW:
            parents, tokens = self._parent, self._token
            for each in range(slot + 1, self._count):
                if parents[each] == slot and tokens[each] == token:
                    return each
            return None
        children = self.below([slot])
        found = children.compress(self.tokens.take(children) == token)
        return int(found[0]) if len(found) else None

    def links_below(self, slots: Iterable[int]) -> set[int]:
        """Collect the `link` to every child of these slots."""
        inner = [slot for slot in slots if self._is_above[slot]]
        if not inner:
            return set()
        children = self.below(inner)
        return set(links(self.parents.take(children), self.tokens.take(children)).tolist())

    def path(self, slot: int) -> list[int]:
        """List the slots from below the root down to this one; none for the root."""
        found: list[int] = []
        while slot != ROOT:
            found.append(slot)
            slot = self._parent[slot]
        return found[::-1]

    def name_root(self, node_id: int) -> None:
        """Give a root that was no node the id of the node that it turns out to be."""
        self._id[ROOT] = node_id

    def add(self, parent: int, node_id: int, token: int, edge: float) -> int:
        """Hang a node below slot `parent`, which must have no child with that token, and return its slot. Its id is above all others."""
        slot = self._count
        if slot == len(self._id):
            self.reserve(slot + 1)
        self._id[slot], self._token[slot], self._parent[slot] = node_id, token, parent
        self._position[slot], self._score[slot] = self._position[parent] + 1, self._score[parent] + rounded(edge)
        self._is_above[parent] = True
        self._count = slot + 1
        return slot

    def extend(self, ids: Ints, parents: Ints, tokens: Ints, edges: Scores) -> bool:
        """Hang many nodes at once, [n] each. A parent is a slot; those from `len(self) + 1` on are of the nodes that come.

        False, and nothing has changed, if an edge is not in LEAST_EDGE..0, or a parent would have a token twice.
        """
        start, stop = self._count, self._count + len(parents)
        self.reserve(stop)  # first: the slots of nodes that come are looked up too
        if not are_edges(edges) or self._clash(parents, tokens):
            return False
        numbers = self._numbers
        numbers[ID, start:stop], numbers[TOKEN, start:stop], numbers[PARENT, start:stop] = ids, tokens, parents
        self._place(start, parents, rounded(edges))
        self._above[parents] = True
        self._count = stop
        return True

    def _place(self, start: int, parents: Ints, edges: Scores) -> None:
        """Write positions and scores of the nodes from slot `start` on, below these parents, some of which come with their children."""
        positions, scores = self._numbers[POSITION], self._scores
        new, sums = positions[start : start + len(parents)], scores[start : start + len(parents)]
        new[:] = _UNPLACED
        for _ in range(_LEVELS):  # each time a level more is right
            new[:] = positions.take(parents) + 1
            sums[:] = scores.take(parents) + edges
            if not np.count_nonzero(new < 0):
                return
        for slot, (parent, edge) in enumerate(zip(parents.tolist(), edges.tolist(), strict=True), start):
            self._position[slot], self._score[slot] = self._position[parent] + 1, self._score[parent] + edge

    def rescore(self, slots: Sequence[int] | Ints, edges: Sequence[float] | Scores) -> None:
        """Give nodes, none of them the root and all different, other edges [n]. The scores of all that hangs below them move along."""
        if len(slots) <= _FEW and not any(self._is_above[slot] for slot in slots):
            for slot, edge in zip(slots, edges, strict=True):
                self._score[slot] = self._score[self._parent[slot]] + rounded(float(edge))
            return
        slots, edges = np.asarray(slots), np.asarray(edges)
        scores, parents = self.scores, self.parents
        lowest = int(slots.min())
        change = np.zeros(self._count - lowest + 1)  # the first is what all that stands before them has: none
        change[slots - (lowest - 1)] = rounded(edges) - (scores.take(slots) - scores.take(parents.take(slots)))
        if np.count_nonzero(self._above.take(slots)):
            change = self._summed(change, lowest)
        scores[lowest:] += change[1:]

    def _summed(self, change: Scores, lowest: int) -> Scores:
        """Sum up what a node has, and all above it down from slot `lowest`: each looks up twice as far each time, as in `_descent`."""
        above = np.maximum(self.parents[lowest - 1 :] - (lowest - 1), 0)
        above[0] = 0
        levels = int(self.positions[lowest:].max()) - self._position[ROOT]
        for _ in range(levels.bit_length()):
            change = change + change.take(above)
            above = above.take(above)
        return change

    def holds(self, parents: Ints, tokens: Ints) -> Flags:
        """Tell for each slot and token whether the slot has a child with that token [n]."""
        old = self._links_below(parents)
        return np.isin(links(parents, tokens), old) if len(old) else np.zeros(len(parents), dtype=np.bool_)

    def children(self, parents: Ints, tokens: Ints) -> Ints:
        """Look up the slots [n] of the children of these slots with these tokens; -1 where there is none, or the parent is -1."""
        below = self.below(parents.compress(parents >= 0)) if len(parents) else NO_SLOTS
        found = np.full(len(parents), -1, dtype=np.int64)
        if not len(below):
            return found
        known, wanted = links(self.parents.take(below), self.tokens.take(below)), links(parents, tokens)
        order = known.argsort()
        places = np.minimum(known.searchsorted(wanted, sorter=order), len(below) - 1)
        slots = below.take(order.take(places))
        return np.where(known.take(order.take(places)) == wanted, slots, found)

    def _clash(self, parents: Ints, tokens: Ints) -> bool:
        """Tell whether new nodes would give a parent the same token twice."""
        new, old = links(parents, tokens), self._links_below(parents)
        if len(old):
            new = np.concatenate((new, old))
        new.sort()
        return bool(np.count_nonzero(new[1:] == new[:-1]))

    def _links_below(self, parents: Ints) -> Ints:
        """Collect the `link` to every live child of these slots, some of which may be of nodes to be."""
        live = parents.compress(parents < self._count)
        inner = live.compress(self._above.take(live))
        if not len(inner):
            return NO_SLOTS
        children = self.below(inner)
        return links(self.parents.take(children), self.tokens.take(children))

    def reroot(self, deepest: int, bonus: int) -> Ints | None:
        """Make the child of slot `deepest` with token `bonus` the root (a hit), or a fresh root if there is none (a miss).

        After a hit: the new slot of every old one [n], -1 for the dead. After a miss: None.
        """
        heir = self.child(deepest, bonus)
        self._remember()
        if heir is None:
            self._restart(bonus, self._position[deepest] + 1)
            return None
        return self._keep_few(self._few_below(heir)) if self._count <= _FEW else self._keep(self._descent(heir))

    def _descent(self, heir: int) -> Ints:
        """List the slots of a node and of all below it, ascending.

        Every node that came later looks up to its parent, then to its parent's parent and so on, twice as far each time. In the
        numbering used here the heir is 1; whatever does not hang below it ends at 0.
        """
        above = self.parents[heir - 1 :] - (heir - 1)
        above[:2] = 0, 1
        levels = int(self.positions[heir:].max()) - self._position[heir]
        for _ in range(max(0, levels).bit_length()):
            above = above.take(above, mode="clip")  # below 0 is whatever came before the heir
        return (above == 1).nonzero()[0] + (heir - 1)

    def _few_below(self, heir: int) -> list[int]:
        """`_descent` in a tree of few nodes: one look at each."""
        parents, found = self._parent, [heir]
        within = {heir}
        for slot in range(heir + 1, self._count):
            if parents[slot] in within:
                within.add(slot)
                found.append(slot)
        return found

    def _keep_few(self, survivors: list[int]) -> Ints:
        """`_keep` of few nodes: each is moved by itself."""
        ids, tokens, parents, positions = self._id, self._token, self._parent, self._position
        scores, above, moved = self._score, self._is_above, [-1] * self._count
        for new, old in enumerate(survivors):
            moved[old] = new
            ids[new], tokens[new], positions[new] = ids[old], tokens[old], positions[old]
            parents[new] = moved[parents[old]]  # a parent stands before its children; the new root's has not survived
            scores[new], above[new] = scores[old], above[old]
        for column in self._attached:
            column.data[: len(survivors)] = column.data.take(survivors)
        self._shrink(len(survivors))
        return np.array(moved)

    def best(self, count: int, topk: int, depth: int) -> list[int]:
        """Choose what a step takes: the root and the best-scored nodes below it, `count` slots in all at most; see `choice.best`."""
        return (best_of_few if self._count <= _FEW else best)(self, count, topk, depth)

    def listed(self, slots: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int], list[float]]:
        """List ids, tokens, slots of parents, positions and log-survivals of these nodes."""
        if self._count > _FEW:
            ids, tokens, parents, positions = self.columns(slots).tolist()
            return ids, tokens, parents, positions, self.log_survivals(slots).tolist()
        ids, tokens, parents, positions = (
            [row[slot] for slot in slots] for row in self._numbers[:, : self._count].tolist()
        )
        scores, root = self.scores.tolist(), self.root_score
        return ids, tokens, parents, positions, [scores[slot] - root for slot in slots]


_TOKEN_BITS: Final = 32


def link(parent: int, token: int) -> int:
    """Pack the slot of a parent and the token of its child into one number."""
    return parent << _TOKEN_BITS | token


def links(parents: Ints, tokens: Ints) -> Ints:
    """Pack each parent and token [n] as `link` does."""
    return (parents << _TOKEN_BITS) | tokens
