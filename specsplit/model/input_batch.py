"""The rows of one forward end to end, on the device: what a model reads, and where an attention backend finds their KV.

B   rows        P   most pages of a row        T   new tokens of all rows        Q, L   new tokens of a row, tokens that it sees
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specsplit.model.batch import Ints, Row
from specsplit.model.page_tables import PageTables

_Array: TypeAlias = Any
"""A tensor, or numpy's array where the device is the CPU: there the tables are the host's, and numpy is quicker at what is small."""


class PagedIndices(NamedTuple):
    """The pages of all rows end to end, int32: what FlashInfer's paged wrappers take."""

    indptr: Tensor
    """[B + 1] where each row begins."""
    indices: Tensor
    """[sum of pages]"""
    last_page_len: Tensor
    """[B] tokens on each row's last page."""


class InputBatch:
    """Rows of one forward in the page tables as they are now."""

    def __init__(
        self, rows: Sequence[Row], tables: PageTables, device: torch.device, *, in_numpy: bool | None = None
    ) -> None:
        """Pack at least one row. `in_numpy`: where indices are computed; by default in numpy if the device is the CPU."""
        self._in_numpy: Final = device.type == "cpu" if in_numpy is None else in_numpy
        self._tables: Final[_Array] = tables.matrix if self._in_numpy else tables.on(device)
        self._page_size: Final = tables.page_size
        self.rows: Final = rows
        queries = [row.num_tokens for row in rows]
        starts = [0, *accumulate(queries[:-1])]
        wanted = [start + index for row, start in zip(rows, starts, strict=True) for index in row.logits_at]
        self.tokens: Final = _on(device, _joined([row.tokens for row in rows]))
        """[T]"""
        self.positions: Final = _on(device, _joined([row.positions for row in rows]))
        """[T]"""
        self.logits_at: Final = _on(device, np.array(wanted, dtype=np.int64))
        """[n] indices into T, row by row in the order each row asked."""
        self.starts, self.queries, self.lengths = np.array((starts, queries, [row.pages.length for row in rows]))
        """[B] each, on the host: index of each row's first token, Q and L of each row."""
        self.run: Final = _run(rows[0], tables) if len(rows) == 1 else None
        """The slots of the only row, if its pages lie side by side: then its KV can be read where it is."""
        self.write_slots: Final = self._tensor(self._write_slots())
        """[T] where the KV of the new tokens goes: the last of what their rows see."""

    @cached_property
    def _pages(self) -> _Array:
        """int32 [B, P]; what is behind a row's own pages means nothing."""
        counts = self._page_counts
        most = int(counts.max())
        pages = self._tables[self._array(np.array([row.pages.table for row in self.rows])), :most]
        if pages.shape[1] < most:
            concat, expand = (np.concat, np.broadcast_to) if self._in_numpy else (torch.concat, torch.broadcast_to)
            pages = concat((pages, expand(pages[:, :1], (len(pages), most - pages.shape[1]))), 1)
        own = [(i, row.pages.own) for i, row in enumerate(self.rows) if row.pages.own is not None]
        if own:
            at = [(np.full(len(new), i), np.arange(counts[i] - len(new), counts[i]), new) for i, new in own]
            row, column, page = self._array(np.concatenate(at, axis=1, dtype=np.int32, casting="same_kind"))
            pages[row, column] = page
        return pages

    def _write_slots(self) -> _Array:
        new, size = self.queries, self._page_size
        if self.run is not None:
            return self._arange(int(new[0])) + (self.run.stop - int(new[0]))
        rows = np.arange(len(new)).repeat(new)
        local = np.arange(len(rows)) + (self.lengths - new - self.starts).take(rows)
        row, page, within = self._array(np.stack((rows, local // size, local % size)))
        return self._pages[row, page] * size + within

    def slots(self, rows: Sequence[int]) -> Tensor:
        """[len(rows), most L] the slots of rows; behind those of a shorter one its first, since others' KV may hold NaN."""
        pages, lengths, size = self._pages, self.lengths, self._page_size
        if len(rows) < len(self.rows):
            at = np.array(rows)
            pages, lengths = pages[self._array(at)], lengths[at]
        most = int(lengths.max())
        slots = pages[:, : -(-most // size), None] * size + self._arange(size)
        slots = slots.reshape(len(lengths), -1)[:, :most]
        if int(lengths.min()) < most:
            where = np.where if self._in_numpy else torch.where
            slots = where(self._arange(most) < self._array(lengths[:, None]), slots, slots[:, :1])
        return self._tensor(slots)

    def indices(self) -> PagedIndices:
        """The pages of the rows end to end."""
        counts, pages, device = self._page_counts, self._tensor(self._pages), self.tokens.device
        total = int(counts.sum())
        indptr = _on(device, np.concatenate(([0], counts.cumsum())))
        rows = torch.repeat_interleave(_on(device, counts), output_size=total)
        within = torch.arange(total, device=device) - indptr.index_select(0, rows)
        last = (self.lengths - 1) % self._page_size + 1
        return PagedIndices(indptr.int(), pages[rows, within], _on(device, last).int())

    @property
    def _page_counts(self) -> Ints:
        return -(-self.lengths // self._page_size)

    def _array(self, array: NDArray[Any]) -> _Array:
        return array if self._in_numpy else _on(self.tokens.device, array)

    def _arange(self, count: int) -> _Array:
        return np.arange(count) if self._in_numpy else torch.arange(count, device=self.tokens.device)

    def _tensor(self, array: _Array) -> Tensor:
        return torch.from_numpy(array) if self._in_numpy else array


def _joined(parts: Sequence[ArrayLike]) -> Ints:
    return np.asarray(parts[0], dtype=np.int64) if len(parts) == 1 else np.concatenate(parts, dtype=np.int64)


def _on(device: torch.device, array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _run(row: Row, tables: PageTables) -> slice | None:
    pages = tables.listed(row.pages)
    first, steps = int(pages[0]), len(pages) - 1
    if int(pages[-1]) - first != steps or (steps > 1 and bool((np.diff(pages) != 1).any())):
        return None
    start = first * tables.page_size
    return slice(start, start + row.pages.length)
