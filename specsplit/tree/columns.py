"""Where the nodes of a tree are kept: columns of arrays by slot, and those that others attach.

The columns grow by doubling. A *slot* holds until survivors are moved to the front.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Scores: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

ROOT: Final = 0
"""The root's slot."""
NO_SLOTS: Final[Ints] = np.empty(0, dtype=np.int64)
ID, TOKEN, PARENT, POSITION = range(4)
"""Rows of the numbers."""
_CAPACITY: Final = 64
_MOVED_AT_ONCE: Final = 256
"""Up to so many survivors of a reroot are moved by one call for all four numbers. More would be fresh memory each time."""


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


class Columns:
    """The root and the live nodes of a tree by slot. `TokenTree` checks what may hang where."""

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
        return self._numbers[ID, : self._count]

    @property
    def tokens(self) -> Ints:
        """Tokens by slot [n]."""
        return self._numbers[TOKEN, : self._count]

    @property
    def parents(self) -> Ints:
        """Slots of the parents by slot [n]; -1 for the root's."""
        return self._numbers[PARENT, : self._count]

    @property
    def positions(self) -> Ints:
        """Index of each token in the session's whole sequence, from 0, by slot [n]."""
        return self._numbers[POSITION, : self._count]

    @property
    def scores(self) -> Scores:
        """Scores by slot [n]. Only differences mean anything: to the root's, that is the log of the survival."""
        return self._scores[: self._count]

    @property
    def edges(self) -> Scores:
        """Edges by slot [n]; 0 for the root."""
        found = self.scores - self.scores.take(self.parents)
        found[ROOT] = 0.0
        return found

    @property
    def root_id(self) -> int:
        """Id of the root: 0 if it was never a node."""
        return self._id[ROOT]

    @property
    def root_score(self) -> float:
        """Score of the root, from which the others are counted."""
        return self._score[ROOT]

    @property
    def root_position(self) -> int:
        """Index of the root in the session's whole sequence."""
        return self._position[ROOT]

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

    def has_children(self, slot: int) -> bool:
        """Tell whether anything hangs below a slot."""
        return self._is_above[slot]

    def below(self, slots: Sequence[int] | Ints) -> Ints:
        """List the children of these slots, ascending."""
        if len(slots) == 1:
            return (self.parents == slots[0]).nonzero()[0] if self._is_above[slots[0]] else NO_SLOTS
        is_parent = np.zeros(self._count, dtype=np.bool_)
        is_parent[slots] = True
        return is_parent.take(self.parents[1:]).nonzero()[0] + 1

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

    def log_survivals(self, slots: Sequence[int] | Ints) -> Scores:
        """Estimate, as logs [n], how probable it is that each of these nodes is accepted, given the root."""
        return self._scores.take(slots) - self._score[ROOT]

    def columns(self, slots: Sequence[int] | Ints) -> Ints:
        """Gather ids, tokens, parents and positions of these nodes, [4, n]."""
        return self._numbers.take(slots, axis=1)

    def _keep(self, survivors: Ints) -> Ints:
        """Keep these slots alone, ascending, the first of which is the root now; the new slot of every old one [n], -1 for the dead."""
        count = len(survivors)
        moved: Ints = np.full(self._count + 1, -1, dtype=np.int64)  # the last is where the parent -1 of a root looks
        moved[survivors] = np.arange(count)
        rows = (self._numbers,) if count <= _MOVED_AT_ONCE else self._numbers
        for data in (*rows, self._scores, self._above, *(column.data for column in self._attached)):
            data[..., :count] = data.take(survivors, axis=-1)
        self._numbers[PARENT, :count] = moved.take(self._numbers[PARENT, :count])
        self._shrink(count)
        return moved[:-1]

    def _remember(self) -> None:
        """Keep what the attached columns are that remember, for those who must free what the dead had."""
        for column in self._attached:
            if column.remembers:
                column.before = column.data[: self._count].copy()

    def _restart(self, token: int, position: int) -> None:
        self._id[ROOT], self._token[ROOT], self._parent[ROOT], self._position[ROOT] = 0, token, -1, position
        self._score[ROOT], self._is_above[ROOT] = 0.0, False
        for column in self._attached:
            column.data[ROOT] = column.fill
        self._shrink(1)

    def _shrink(self, count: int) -> None:
        if count == self._count:
            return
        self._above[count : self._count] = False
        for column in self._attached:
            column.data[count : self._count] = column.fill
        self._count = count

    def _share(self) -> None:
        """Make memoryviews of the columns: reading a single value costs half of what it costs in an array, and gives a plain number."""
        self._id, self._token, self._parent, self._position = (row.data for row in self._numbers)
        self._score = self._scores.data.cast("B").cast("d")
        self._is_above = self._above.data.cast("B").cast("?")
