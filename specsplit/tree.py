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
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Scores: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

ROOT: Final = 0
"""The root's slot."""
_ID, _TOKEN, _PARENT, _POSITION = range(4)
_CAPACITY: Final = 64
_TOKEN_BITS: Final = 32
_LEVELS: Final = 16
"""New nodes that hang deeper below one another are placed one by one."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node, or the root, as it was when somebody looked. What hangs below it can be asked for until the next reroot."""

    tree: TokenTree = field(repr=False)
    id: int
    """0 for a root that was never a node."""
    token: int
    score: float
    """Log-survival, <= the parent's."""
    position: int
    """Index of the token in the session's whole sequence, from 0."""
    parent: Node | None = field(default=None, compare=False, repr=False)

    @property
    def children(self) -> dict[int, Node]:
        """By token, likeliest first; of equals the first to come."""
        slot, tree = self.tree.slot(self.id), self.tree
        return {node.token: node for node in (tree.look(below, self) for below in tree.family().get(slot, ()))}

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one; empty for the root."""
        found: list[Node] = []
        node = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def descendants(self) -> Iterator[Node]:
        """Every node below this one, level by level."""
        family = self.tree.family()
        level = {self.tree.slot(self.id): self}
        while level := {
            slot: self.tree.look(slot, node) for above, node in level.items() for slot in family.get(above, ())
        }:
            yield from level.values()


class Column:
    """One more value for every slot, which moves with the nodes. Only live slots may be written."""

    __slots__ = ("before", "data", "fill", "remembers")

    def __init__(self, data: npt.NDArray[Any], fill: object, remembers: bool) -> None:
        self.data = data
        """By slot; the tree replaces it when it needs more room, so it must not be kept."""
        self.before = data[:0]
        """What it was before the latest reroot, by the slots of then, if it remembers: whoever must free what the dead had looks here."""
        self.fill = fill
        """What a new node has."""
        self.remembers = remembers


class TokenTree:
    """A root and the live nodes below it."""

    def __init__(self, token: int, position: int) -> None:
        self._count = 1
        """Slots in use, the root's included."""
        self._numbers: Ints = np.zeros((4, _CAPACITY), dtype=np.int64)
        self._scores: Scores = np.zeros(_CAPACITY)
        self._above: Flags = np.zeros(_CAPACITY, dtype=np.bool_)
        """True for nodes that have children."""
        self._attached: list[Column] = []
        self._share()
        self._restart(token, position)

    def __len__(self) -> int:
        """Live nodes, root not counted."""
        return self._count - 1

    @property
    def ids(self) -> Ints:
        """Ids by slot [n], ascending; a view, as the other columns are."""
        return self._numbers[_ID, : self._count]

    @property
    def tokens(self) -> Ints:
        """Tokens by slot [n]."""
        return self._numbers[_TOKEN, : self._count]

    @property
    def parents(self) -> Ints:
        """Slots of the parents by slot [n]; -1 for the root's."""
        return self._numbers[_PARENT, : self._count]

    @property
    def positions(self) -> Ints:
        """Index of each token in the session's whole sequence, from 0, by slot [n]."""
        return self._numbers[_POSITION, : self._count]

    @property
    def scores(self) -> Scores:
        """Scores by slot [n]."""
        return self._scores[: self._count]

    @property
    def root(self) -> Node:
        """The root as a Node, for those who look."""
        return self.look(ROOT, None)

    @property
    def root_id(self) -> int:
        """Id of the root: 0 if it was never a node."""
        return self._id[ROOT]

    @property
    def root_score(self) -> float:
        """Score of the root, from which the others are counted now."""
        return self._score[ROOT]

    @property
    def root_position(self) -> int:
        """Index of the root in the session's whole sequence."""
        return self._position[ROOT]

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

    def find(self, node_id: int) -> int | None:
        """Look up the slot of the live node, or root, with this id; None if there is none."""
        slot = bisect_left(self._id, node_id, 0, self._count)
        return slot if slot < self._count and self._id[slot] == node_id else None

    def slot(self, node_id: int) -> int:
        """Look up the slot of the live node, or root, with this id; KeyError if there is none."""
        found = self.find(node_id)
        if found is None:
            raise KeyError(node_id)
        return found

    def find_all(self, node_ids: Ints, fresh: Ints) -> Ints | None:
        """Look up the slots [n] of nodes by id; None if one is not there.

        Ids in `fresh`, ascending and above all others, have the next free slots.
        """
        known = np.concatenate((self.ids, fresh))
        slots = known.searchsorted(node_ids)
        slots = np.minimum(slots, len(known) - 1)
        return slots if np.count_nonzero(known.take(slots) == node_ids) == len(node_ids) else None

    def id_of(self, slot: int) -> int:
        return self._id[slot]

    def token_of(self, slot: int) -> int:
        return self._token[slot]

    def score_of(self, slot: int) -> float:
        return self._score[slot]

    def child(self, slot: int, token: int) -> int | None:
        """Look up the child of a slot with this token; None if there is none."""
        if not self._is_above[slot]:
            return None
        found = ((self.parents == slot) & (self.tokens == token)).nonzero()[0]
        return int(found[0]) if len(found) else None

    def has_children(self, slot: int) -> bool:
        """Tell whether anything hangs below a slot."""
        return self._is_above[slot]

    def edges_below(self, slots: Iterable[int]) -> set[int]:
        """Collect the `edge` to every child of these slots."""
        inner = [slot for slot in slots if self._is_above[slot]]
        if not inner:
            return set()
        children = self._below(inner)
        return set(_edges(self.parents.take(children), self.tokens.take(children)).tolist())

    def path(self, slot: int) -> list[int]:
        """List the slots from below the root down to this one; none for the root."""
        found: list[int] = []
        while slot != ROOT:
            found.append(slot)
            slot = self._parent[slot]
        return found[::-1]

    def attach(self, dtype: npt.DTypeLike, fill: object, *, remembers: bool = False) -> Column:
        """Add a column of one's own, which has `fill` for every node until it is written.

        remembers: keep what it was `before` a reroot, until the next one.
        """
        column = Column(np.full(len(self._scores), fill, dtype=dtype), fill, remembers)
        self._attached.append(column)
        return column

    def reserve(self, count: int) -> None:
        """Make room for so many slots, which growing does by itself too."""
        if count <= len(self._scores):
            return
        more = (1 << (count - 1).bit_length()) - len(self._scores)
        self._numbers = np.concatenate((self._numbers, np.zeros((len(self._numbers), more), dtype=np.int64)), axis=1)
        self._scores = np.concatenate((self._scores, np.zeros(more)))
        self._above = np.concatenate((self._above, np.zeros(more, dtype=np.bool_)))
        for column in self._attached:
            column.data = np.concatenate((column.data, np.full(more, column.fill, dtype=column.data.dtype)))
        self._share()

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
        numbers[_ID, start:stop], numbers[_TOKEN, start:stop], numbers[_PARENT, start:stop] = ids, tokens, parents
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
        positions, new = self._numbers[_POSITION], self._numbers[_POSITION, start : start + len(parents)]
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
        return np.isin(_edges(parents, tokens), old) if len(old) else np.zeros(len(parents), dtype=np.bool_)

    def _clash(self, parents: Ints, tokens: Ints) -> bool:
        """Tell whether new nodes would give a parent the same token twice."""
        edges, old = _edges(parents, tokens), self._edges_below(parents)
        if len(old):
            edges = np.concatenate((edges, old))
        edges.sort()
        return bool(np.count_nonzero(edges[1:] == edges[:-1]))

    def _edges_below(self, parents: Ints) -> Ints:
        """Collect the `edge` to every live child of these slots, some of which may be of nodes to be."""
        inner = parents.compress((parents < self._count) & self._above.take(parents))
        if not len(inner):
            return _NO_SLOTS
        children = self._below(inner)
        return _edges(self.parents.take(children), self.tokens.take(children))

    def reroot(self, deepest: int, bonus: int) -> Ints | None:
        """Make the child of slot `deepest` with token `bonus` the root (a hit), or a fresh root if there is none (a miss).

        After a hit: the new slot of every old one [n], -1 for the dead. After a miss: None.
        """
        heir = self.child(deepest, bonus)
        for column in self._attached:
            if column.remembers:
                column.before = column.data[: self._count].copy()
        if heir is None:
            self._restart(bonus, self._position[deepest] + 1)
            return None
        survivors = self._descent(heir)
        moved: Ints = np.full(self._count + 1, -1, dtype=np.int64)  # the last is where the parent -1 of a root looks
        moved[survivors] = np.arange(len(survivors))
        numbers = self._numbers.take(survivors, axis=1)
        numbers[_PARENT] = moved.take(numbers[_PARENT])
        self._numbers[:, : len(survivors)] = numbers
        self._scores[: len(survivors)] = self._scores.take(survivors)
        self._above[: len(survivors)] = self._above.take(survivors)
        for column in self._attached:
            column.data[: len(survivors)] = column.data.take(survivors)
        self._shrink(len(survivors))
        return moved[:-1]

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

    def survivals(self, slots: Sequence[int] | Ints) -> Scores:
        """Estimate, as logs [n], how probable it is that each of these nodes is accepted, given the root."""
        return self._scores.take(slots) - self._score[ROOT]

    def columns(self, slots: Sequence[int] | Ints) -> Ints:
        """Gather ids, tokens, parents and positions of these nodes, [4, n]."""
        return self._numbers.take(slots, axis=1)

    def best(self, count: int, topk: int, depth: int) -> list[int]:
        """Choose the root and the best-scored nodes, `count` slots in all at most, parents before children.

        At most `topk` children of one node and `depth` levels below the root are considered. A child never outscores its parent, so
        taking the best one at a time from the frontier is optimal (the argument of EAGLE-2, arXiv 2406.16858). It comes to this: in the
        order of scores, the older of equals first, take every node whose parent is taken and has not got `topk` children yet.
        """
        if count == 1 or depth <= 0:
            return [ROOT]
        if topk == 1:
            return self._chain(min(count, depth + 1))
        near = (self.positions[1:] <= self._position[ROOT] + depth).nonzero()[0] + 1
        taken = self._walk(self._likeliest(near, 4 * count + 32), count, topk)
        if len(taken) == count or len(near) <= 4 * count + 32:
            return taken
        return self._walk(self._likeliest(self._eligible(count, topk, depth), count), count, topk)

    def _likeliest(self, slots: Ints, count: int) -> Ints:
        return likeliest(slots, self._scores.take(slots), count)

    def _walk(self, ranked: Ints, count: int, topk: int, start: Sequence[int] = (ROOT,)) -> list[int]:
        """Take `start` and the first nodes that `best` takes below it, `count` in all, from slots in the order of their scores."""
        room = dict.fromkeys(start, topk)
        for slot, parent in zip(ranked.tolist(), self._numbers[_PARENT].take(ranked).tolist(), strict=True):
            if len(room) == count:
                break
            if room.get(parent, 0) > 0:
                room[parent] -= 1
                room[slot] = topk
        return list(room)

    def _chain(self, count: int) -> list[int]:
        """Take the root, its best child, the best child of that and so on, `count` in all at most."""
        chain = [ROOT]
        while len(chain) < count and self._is_above[chain[-1]]:
            below = self._below(chain[-1:])
            chain.append(int(below[self._scores.take(below).argmax()]))
        return chain

    def _eligible(self, count: int, topk: int, depth: int) -> Ints:
        """List all nodes that `best` might take, ascending: on each level the best `count` below those of the level above.

        This is needed when most of the best-scored nodes hang below ones that are not taken.
        """
        level, found = [ROOT], _NO_SLOTS
        for _ in range(depth):
            below = self._below(level)
            if not len(below):
                break
            level = self._walk(self._likeliest(below, len(below)), len(level) + count, topk, level)[len(level) :]
            found = np.concatenate((found, level))
        return np.sort(found)

    def _below(self, slots: Sequence[int] | Ints) -> Ints:
        """List the children of these slots, ascending."""
        if len(slots) == 1:
            return (self.parents == slots[0]).nonzero()[0] if self._is_above[slots[0]] else _NO_SLOTS
        is_parent = np.zeros(self._count, dtype=np.bool_)
        is_parent[slots] = True
        return is_parent.take(self.parents[1:]).nonzero()[0] + 1

    def snapshot(self) -> tuple[int, int, dict[int, tuple[int, int, float]]]:
        """Describe the tree as (root id, root token, {id: (parent id, token, score)}), which is equal for equal trees."""
        ids = self.ids.tolist()
        rows = zip(ids, self.parents.tolist(), self.tokens.tolist(), self.scores.tolist(), strict=True)
        described = {node_id: (ids[parent], token, score) for node_id, parent, token, score in rows if parent >= 0}
        return self.root_id, self._token[ROOT], described

    def _restart(self, token: int, position: int) -> None:
        self._numbers[:, ROOT] = 0, token, -1, position
        self._scores[ROOT] = 0.0
        self._above[ROOT] = False
        for column in self._attached:
            column.data[ROOT] = column.fill
        self._shrink(1)

    def _shrink(self, count: int) -> None:
        self._above[count : self._count] = False
        for column in self._attached:
            column.data[count : self._count] = column.fill
        self._count = count

    def _share(self) -> None:
        """Make memoryviews of the columns: reading a single value costs half of what it costs in an array, and gives a plain number."""
        self._id, self._token, self._parent, self._position = (row.data for row in self._numbers)
        self._score = self._scores.data.cast("B").cast("d")
        self._is_above = self._above.data.cast("B").cast("?")


_NO_SLOTS: Final[Ints] = np.empty(0, dtype=np.int64)


def edge(parent: int, token: int) -> int:
    """Pack the slot of a parent and the token of its child into one number."""
    return parent << _TOKEN_BITS | token


def _edges(parents: Ints, tokens: Ints) -> Ints:
    """Pack each parent and token [n] as `edge` does."""
    return (parents << _TOKEN_BITS) | tokens


def likeliest(slots: Ints, scores: Scores, count: int) -> Ints:
    """Choose the `count` best-scored of `slots` [n], which ascend, or more if the last are equal: best first, of equals the lower slot."""
    if count < len(slots):
        least = np.partition(scores, len(slots) - count)[len(slots) - count]
        enough: Ints = (scores >= least).nonzero()[0]
        slots, scores = slots.take(enough), scores.take(enough)
    order: Ints = np.argsort(-scores, kind="stable")
    return slots.take(order)


def expected_drafts(survivals: list[float]) -> float:
    """Expect so many num_correct_drafts of a step over nodes with these log-survivals: the sum of their probabilities."""
    return math.fsum(math.exp(s) for s in survivals)
