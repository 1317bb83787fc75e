"""Where the rows of one forward read and write KV, on the device: the page tables as an attention backend wants them.

B   rows        P   most pages of a row        T   new tokens of all rows        L   tokens that a row sees
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from specsplit.model.batch import Ints, PackedBatch
from specsplit.model.page_tables import PageTables


class PagedIndices(NamedTuple):
    """The pages of all rows end to end, int32: what FlashInfer's paged wrappers take."""

    indptr: Tensor
    """[B + 1] where each row begins."""
    indices: Tensor
    """[sum of pages]"""
    last_page_len: Tensor
    """[B] tokens on each row's last page."""


class PagedRows:
    """One forward's rows in the page tables."""

    def __init__(self, batch: PackedBatch, tables: PageTables, device: torch.device) -> None:
        self._rows: Final = [row.pages for row in batch.rows]
        self._batch: Final = batch
        self._tables: Final = tables
        self._device: Final = device
        self.lengths: Final[Ints] = np.array([row.length for row in self._rows], dtype=np.int64)
        """[B] L of each row."""

    @cached_property
    def run(self) -> slice | None:
        """The slots of the only row, if its pages lie side by side: then its KV can be read where it is."""
        if len(self._rows) > 1:
            return None
        listed = self._tables.listed(self._rows[0])
        first, steps = int(listed[0]), len(listed) - 1
        if int(listed[-1]) - first != steps or (steps > 1 and bool((np.diff(listed) != 1).any())):
            return None
        start = first * self._tables.page_size
        return slice(start, start + self._rows[0].length)

    @cached_property
    def pages(self) -> Tensor:
        """int32 [B, P]; what is behind a row's own pages means nothing."""
        if len(self._rows) == 1:
            return self._alone
        counts = self._page_counts
        most = int(counts.max())
        tables = self._tensor(np.array([row.table for row in self._rows]))
        pages = self._tables.on(self._device)[:, :most].index_select(0, tables)
        if pages.shape[1] < most:
            pages = pad(pages, (0, most - pages.shape[1]))
        own = [(i, row.own) for i, row in enumerate(self._rows) if row.own is not None]
        if own:
            ends = [i * most + int(counts[i]) for i, _ in own]
            at = np.concatenate([np.arange(end - len(new), end) for end, (_, new) in zip(ends, own, strict=True)])
            new = self._tensor(np.stack((at, np.concatenate([new for _, new in own]))))
            pages.view(-1).index_copy_(0, new[0], new[1].to(torch.int32))
        return pages

    @property
    def _alone(self) -> Tensor:
        """The pages of the only row: plain decoding without others, so that every operation counts."""
        row, own = self._rows[0], self._rows[0].own
        held = int(self._page_counts[0]) - (0 if own is None else len(own))
        pages = self._tables.on(self._device)[row.table, :held]
        return (pages if own is None else torch.cat((pages, self._tensor(own.astype(np.int32))))).unsqueeze(0)

    @cached_property
    def write_slots(self) -> Tensor:
        """[T] where the KV of the new tokens goes: the last of what their rows see."""
        if self.run is not None:
            stop = self.run.stop
            return torch.arange(stop - self._batch.rows[0].num_tokens, stop, device=self._device)
        if len(self._rows) == 1:
            return self._whole[0, -self._batch.rows[0].num_tokens :]
        new, size = self._batch.lengths, self._tables.page_size
        rows = np.arange(len(new)).repeat(new)
        local = np.arange(len(rows)) + (self.lengths - new - self._batch.starts).take(rows)
        where = self._tensor(np.stack((rows * self.pages.shape[1] + local // size, local % size)))
        return self.pages.view(-1).index_select(0, where[0]).long() * size + where[1]

    def slots(self, rows: Sequence[int]) -> Tensor:
        """[len(rows), most L] the slots of rows; behind those of a shorter one its first, since others' KV may hold NaN."""
        if len(rows) == len(self._rows):
            return self._whole
        return self._slots(self.pages.index_select(0, self._tensor(np.array(rows))), self.lengths.take(rows))

    @cached_property
    def _whole(self) -> Tensor:
        return self._slots(self.pages, self.lengths)

    def _slots(self, pages: Tensor, lengths: Ints) -> Tensor:
        size, most = self._tables.page_size, int(lengths.max())
        slots = pages[:, : -(-most // size)].long()
        if size > 1:
            within = torch.arange(size, device=self._device)
            slots = (slots.unsqueeze(2) * size + within).view(len(lengths), -1)[:, :most]
        if int(lengths.min()) == most:
            return slots
        real = torch.arange(most, device=self._device) < self._tensor(lengths).unsqueeze(1)
        return torch.where(real, slots, slots[:, :1])

    def indices(self) -> PagedIndices:
        """The pages of the rows end to end."""
        counts = self._page_counts
        total = int(counts.sum())
        indptr = self._tensor(np.concatenate(([0], counts.cumsum())))
        rows = torch.repeat_interleave(self._tensor(counts), output_size=total)
        within = torch.arange(total, device=self._device) - indptr.index_select(0, rows)
        last = (self.lengths - 1) % self._tables.page_size + 1
        return PagedIndices(indptr.int(), self.pages[rows, within], self._tensor(last).int())

    @property
    def _page_counts(self) -> Ints:
        return -(-self.lengths // self._tables.page_size)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
