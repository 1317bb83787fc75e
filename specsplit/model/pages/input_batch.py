"""The rows of one forward end to end, on the device: what a model reads, and where an attention backend finds their KV.

B   rows        P   most pages of a row        T   new tokens of all rows        Q, L   new tokens of a row, tokens that it sees
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specsplit.model.pages.batch import Ints, Row
from specsplit.model.pages.tables import PageTables
from specsplit.model.tensors.transfer import on_device

_Array: TypeAlias = Any
"""A tensor, or numpy's array where the device is the CPU: there the tables are the host's, and numpy is quicker at what is small."""


class InputBatch:
    """Rows of one forward, to be planned and run before the page tables change again."""

    def __init__(
        self, rows: Sequence[Row], tables: PageTables, device: torch.device, *, in_numpy: bool | None = None
    ) -> None:
        """Pack at least one row. `in_numpy`: where indices are computed; by default in numpy if the device is the CPU."""
        self._in_numpy: Final = device.type == "cpu" if in_numpy is None else in_numpy
        self.tables: Final = tables
        """Pages and slots of the rows, on the host."""
        self.rows: Final = rows
        queries = [row.num_tokens for row in rows]
        starts = [0, *accumulate(queries[:-1])]
        wanted = [start + index for row, start in zip(rows, starts, strict=True) for index in row.logits_at]
        self.tokens: Final = on_device(_joined([row.tokens for row in rows]), device)
        """[T]"""
        self.positions: Final = on_device(_joined([row.positions for row in rows]), device)
        """[T]"""
        self.logits_at: Final = on_device(np.array(wanted, dtype=np.int64), device)
        """[n] indices into T, row by row in the order each row asked."""
        self.starts, self.queries, self.lengths = np.array((starts, queries, [row.pages.length for row in rows]))
        """[B] each, on the host: index of each row's first token, Q and L of each row."""
        self.run: Final = _run(rows[0], tables) if len(rows) == 1 else None
        """The slots of the only row, if its pages lie side by side: then its KV can be read where it is.

        Slots of pages that it does not hold are made up, and may be negative; nothing reads them.
        """

    @cached_property
    def write_slots(self) -> Tensor:
        """[T] where the KV of the new tokens goes: the last of what their rows see."""
        return self._tensor(self._write_slots())

    @cached_property
    def new_run(self) -> slice | None:
        """The slots of the only row's new tokens, if they lie side by side and the host can tell."""
        count = len(self.tokens)
        if self.run is not None:
            return slice(self.run.stop - count, self.run.stop)
        if len(self.rows) > 1 or not self._in_numpy:
            return None
        slots = self._slots[0, -count:]
        first, end = int(slots[0]), int(slots[-1]) + 1
        return slice(first, end) if end - first == count and bool((slots[1:] > slots[:-1]).all()) else None

    @cached_property
    def window_write_slots(self) -> Tensor:
        """[T] where the KV of the new tokens goes in layers that see a window."""
        slots = self.in_window(self.write_slots)
        assert isinstance(slots, Tensor), "slots that are listed stay so"
        return slots

    def in_window(self, slots: Tensor | slice) -> Tensor | slice:
        """Where layers that see a window keep what the others have in these slots; a run of them may be none there."""
        windows = self.tables.windows
        if windows is None:
            return slots
        if isinstance(slots, slice):
            run = windows.run_of(slots)
            return self._listed(np.arange(slots.start, slots.stop)) if run is None else run
        return torch.from_numpy(windows.slots_of(slots.numpy())) if self._in_numpy else windows.on_device(slots)

    def _listed(self, slots: Ints) -> Tensor:
        assert self.tables.windows is not None, "it has been asked for"
        return on_device(self.tables.windows.slots_of(slots), self.tokens.device)

    @property
    def _size(self) -> int:
        """Tokens to a page of `_pages`. In numpy those are slots, since the host's tables say the slot of every token."""
        return 1 if self._in_numpy else self.tables.page_size

    @cached_property
    def _pages(self) -> _Array:
        """[B, P]; what is behind the pages of a row means nothing."""
        size = self._size
        counts = [-(-row.pages.length // size) for row in self.rows]
        most = max(counts)
        tables: _Array = self.tables.slots if self._in_numpy else self.tables.on(self.tokens.device)
        if len(self.rows) == 1 and self.rows[0].pages.own is None:
            return tables[self.rows[0].pages.table, :most][None]
        pages = tables[self._array(np.array([row.pages.table for row in self.rows])), :most]
        if pages.shape[1] < most:
            concatenate = np.concatenate if self._in_numpy else torch.cat
            pages = concatenate((pages, pages[:, [0] * (most - pages.shape[1])]), 1)
        own = [(i, self._own(row)) for i, row in enumerate(self.rows) if row.pages.own is not None]
        if own:
            at = [(np.full(len(new), i), np.arange(counts[i] - len(new), counts[i]), new) for i, new in own]
            row, column, page = self._array(np.concatenate(at, axis=1))
            pages[row, column] = page if self._in_numpy else page.int()
        return pages

    def _own(self, row: Row) -> Ints:
        """The last of the row's pages, which are in no table; in numpy the slots of them that it sees."""
        own, size = row.pages.own, self.tables.page_size
        assert own is not None, "the row has pages of its own"
        if not self._in_numpy:
            return own
        unused = -row.pages.length % size  # at the end of the last page
        return self.tables.slots_of(own)[: len(own) * size - unused]

    @cached_property
    def _slots(self) -> _Array:
        return self._slots_of(self._pages, self.lengths)

    def _slots_of(self, pages: _Array, lengths: Ints) -> _Array:
        size, listed = self._size, lengths.tolist()
        most = max(listed)
        slots = pages[:, : -(-most // size)]
        if not self._in_numpy:
            slots = (slots[..., None] * size + self._arange(size)).reshape(len(lengths), -1)[:, :most]
        if min(listed) == most:
            return slots
        if not self._in_numpy:
            real = self._arange(most) < self._array(lengths[:, None])
            return torch.where(real, slots, slots[:, :1])
        for row, length in zip(slots, listed, strict=True):
            row[length:] = row[0]
        return slots

    def slots(self, rows: Sequence[int]) -> Tensor:
        """int64 [len(rows), most L] slots of rows; behind those of a shorter one its first, since others' KV may hold NaN."""
        if len(rows) == len(self.rows):
            return self._tensor(self._slots)
        at = np.array(rows)
        return self._tensor(self._slots_of(self._pages[self._array(at)], self.lengths[at]))

    def _write_slots(self) -> _Array:
        if self.run is not None:
            return self._arange(len(self.tokens)) + (self.run.stop - len(self.tokens))
        if len(self.rows) == 1:
            return self._slots[0, -len(self.tokens) :]
        rows = np.arange(len(self.rows)).repeat(self.queries)
        local = np.arange(len(rows)) + (self.lengths - self.queries - self.starts).take(rows)
        if self._in_numpy:
            return self._pages[rows, local]
        size = self._size
        row, page, within = self._array(np.array((rows, *np.divmod(local, size))))
        return self._pages[row, page] * size + within

    def _array(self, array: NDArray[Any]) -> _Array:
        return array if self._in_numpy else on_device(array, self.tokens.device)

    def _arange(self, count: int) -> _Array:
        return np.arange(count) if self._in_numpy else torch.arange(count, device=self.tokens.device)

    def _tensor(self, array: _Array) -> Tensor:
        return torch.from_numpy(array) if self._in_numpy else array


def _joined(parts: Sequence[ArrayLike]) -> Ints:
    return np.asarray(parts[0], dtype=np.int64) if len(parts) == 1 else np.concatenate(parts, dtype=np.int64)


def _run(row: Row, tables: PageTables) -> slice | None:
    unheld = row.pages.unheld
    pages = tables.listed(row.pages)[unheld:]
    first, steps = int(pages[0]), len(pages) - 1
    if int(pages[-1]) - first != steps or (steps > 1 and bool((pages[1:] - pages[:-1] != 1).any())):
        return None
    start = (first - unheld) * tables.page_size
    return slice(start, start + row.pages.length)
