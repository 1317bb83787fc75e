"""The states of recurrent layers: what such a layer keeps of a text is of one size, however long the text is.

A session's states are those behind its committed tokens. A forward makes new ones, behind every node of a tree and behind the last token
of every chunk. None of them is the session's before `commit` says which, so a forward that failed can be run again; until then all of them
are held, and what is not committed is given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.pages.batch import Row
from specsplit.model.pages.passes import Passes, begin, passes_of
from specsplit.model.pages.snapshots import Snapshots, States
from specsplit.model.pages.tables import PageTables
from specsplit.model.tensors.transfer import on_device
from specsplit.records import StateBytes

_EMPTY: Final = 0
"""Which of the kept states are those of an empty text: zeros."""
_FEWEST: Final = 2


class RecurrentStates:
    """The states of all recurrent modules of a model, for the sessions of one pool of pages: each has those of its page table."""

    def __init__(self, modules: Sequence[States], *, continues: bool = True) -> None:
        """`modules`: of every module its states of one text, [1, ...] each, for their shapes and types.

        `continues`: whether the modules go on from states with more than one token at once.
        """
        self._continues: Final = continues
        self._kept = [[state.new_zeros(_FEWEST, *state.shape[1:]) for state in states] for states in modules]
        self._lengths = np.zeros(_FEWEST, dtype=np.int64)
        """Tokens that the kept states are behind."""
        self._rows: Sequence[Row] = ()
        self._made: list[list[States]] = []
        """What the last forward has made, by module and pass."""
        self._planned: Passes | None = None
        self._tables: PageTables | None = None
        self.snapshots: Final = Snapshots()
        self.step_bytes: int | None = None
        """Device memory for the states behind the drafts of a forward, at most, for who chooses these; None: nobody has said."""
        self.passes: Passes | None = None
        """How the forward is to be run that is under way; None: none is."""

    @property
    def session_bytes(self) -> int:
        """Bytes that are kept of one session, and that a forward holds of each of its nodes until `commit`."""
        return sum(state[0].nbytes for states in self._kept for state in states)

    @property
    def most_nodes(self) -> int | None:
        """Drafts of a forward, at most; None: nobody has said."""
        return None if self.step_bytes is None else self.step_bytes // self.session_bytes

    @property
    def taken(self) -> StateBytes:
        """What they take, and may take. Any thread may ask."""
        return StateBytes(len(self._lengths) * self.session_bytes, self.step_bytes or 0, self.snapshots.nbytes)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._kept[0][0].device

    @property
    def made_bytes(self) -> int:
        """Bytes of what the last forward has made and no `commit` has settled."""
        made = (state for module in self._made for states in module for state in states)
        return sum(state.untyped_storage().nbytes() for state in made)

    def reserve(self, sessions: int) -> None:
        """Take the memory for so many sessions now; for more it is taken when they come."""
        self._grow(1 + sessions)

    @contextmanager
    def forward(self, rows: Sequence[Row], tables: PageTables) -> Iterator[None]:
        """While inside, one forward of these rows is run, whose pages are in these tables.

        Raises ValueError for a row that begins neither where its text does, nor where its session's states are.
        """
        self._rows, self._tables = rows, tables
        page_size = tables.page_size if self.snapshots.limit_bytes else 0
        self._made = [[] for _ in self._kept]
        self._planned = self.passes = passes_of(
            rows, [self._source(row) for row in rows], self._put, page_size, continues=self._continues
        )
        try:
            yield
        finally:
            self.passes = None

    def before(self, module: int) -> States:
        """Copies of a module's states that the rows of its next pass go on from."""
        assert self.passes is not None, "a forward is under way"
        made = self._made[module]
        step = self.passes.passes[len(made)]
        found = [state.index_select(0, step.sources) for state in (self._kept[module] if step.kept else made[-1])]
        held = self.passes.passes[len(made) - 1].held if made else None
        if held is not None:
            made[-1] = [state.index_select(0, held) for state in made[-1]]
        return found

    def after(self, module: int, states: States) -> None:
        """Take the states that a module has made in its next pass."""
        self._made[module].append(states)

    def commit(self, tokens: Sequence[tuple[Row, int]]) -> None:
        """Let sessions have the states behind these tokens of the last forward, from now on: (row, index of a token in it).

        What else it has made is given back: a forward is committed once.
        """
        if tokens:
            self._take(tokens)
        self._rows, self._planned, self._made = (), None, [[] for _ in self._kept]

    def _take(self, tokens: Sequence[tuple[Row, int]]) -> None:
        assert self._planned is not None, "there was a forward, and it is not committed yet"
        numbers = {id(row): number for number, row in enumerate(self._rows)}
        places = np.array([self._planned.places[numbers[id(row)], token] for row, token in tokens])
        tables = np.array([_of_table(row) for row, _ in tokens])
        self._make_room(int(tables.max()))
        for number in np.unique(places[:, 0]):
            of_pass = places[:, 0] == number
            table, source = self._put(tables[of_pass]), self._put(places[of_pass, 1])
            for states, made in zip(self._kept, self._made, strict=True):
                for state, new in zip(states, made[number], strict=True):
                    state.index_copy_(0, table, new.index_select(0, source))
        depths = [int(row.positions[token] - row.positions[0]) for row, token in tokens]
        self._lengths[tables] = [begin(row) + depth + 1 for (row, _), depth in zip(tokens, depths, strict=True)]
        for row, token in tokens:
            self._snap(numbers[id(row)], row, token)

    def resume(self, table: int, page: int, length: int) -> None:
        """Let the session of a page table go on behind a page, of which there is a snapshot, and which is the end of `length` tokens."""
        self._make_room(1 + table)
        for states, known in zip(self._kept, self.snapshots.get(page), strict=True):
            for state, one in zip(states, known, strict=True):
                state[1 + table] = one[0]
        self._lengths[1 + table] = length

    def _snap(self, number: int, row: Row, token: int) -> None:
        """Keep the states behind the pages that a row has completed up to a token, as far as they were made."""
        assert self._planned is not None and self._tables is not None, "there was a forward"
        size = self._tables.page_size
        for depth, node in enumerate(np.flatnonzero(row.tail_mask[token]).tolist()):
            count = begin(row) + depth + 1
            if count % size:
                continue
            (page,) = self._tables.read(row.pages.table, count // size - 1, count // size).tolist()
            place = self._planned.places.get((number, node))
            if place is None or not self.snapshots.limit_bytes:
                self.snapshots.drop([page])
            else:
                self.snapshots.put(
                    page, [[state[place[1], None].clone() for state in made[place[0]]] for made in self._made]
                )

    def _source(self, row: Row) -> int:
        """Which of the kept states a row goes on from."""
        start, table = begin(row), _of_table(row)
        if not start:
            return _EMPTY
        behind = int(self._lengths[table]) if table < len(self._lengths) else 0
        if behind != start:
            raise ValueError(
                f"a row begins behind {start} tokens, and the states of its text are those behind {behind}"
            )
        return table

    def _make_room(self, table: int) -> None:
        if table >= len(self._lengths):
            self._grow(max(table + 1, 2 * len(self._lengths)))

    def _grow(self, count: int) -> None:
        """Have room for the states of so many texts, the empty one among them."""
        more = max(0, count - len(self._lengths))
        for states in self._kept:
            for number, state in enumerate(states):  # one by one: each is there twice while it is copied
                states[number] = torch.cat((state, state.new_zeros(more, *state.shape[1:])))
        self._lengths = np.pad(self._lengths, (0, more))

    def _put(self, indices: NDArray[np.int64]) -> Tensor:
        return on_device(indices, self.device)


def _of_table(row: Row) -> int:
    """Where the states of a row's session are kept: behind those of the empty text."""
    return 1 + row.pages.table
