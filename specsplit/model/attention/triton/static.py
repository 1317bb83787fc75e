"""The kernels in captured forwards: layout, page tables and window pages lie in memory that stays where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from specsplit.model.attention.triton.layout import FIELDS, Field, Shape, lay_out, pages_held
from specsplit.model.pages.batch import Row
from specsplit.model.pages.buckets import Bucket, Buckets
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables
from specsplit.model.tensors.upload import Upload

if TYPE_CHECKING:
    from specsplit.model.attention.triton.forward import LayerKernels, TritonForward

_MORE: Final = 1 << 18
"""Words for the masks of all rows and their own pages."""
_MOST_PAGES: Final = 1 << 22
"""Pages of all rows."""


class StaticTriton:
    """How the captured forwards of one runner attend (a StaticAttention), all in one form."""

    def __init__(self, library: Any, kv: KVCache, kernels: LayerKernels, tables: PageTables, buckets: Buckets) -> None:
        """`library`: the module `specsplit.model.attention.triton.forward`."""
        self.forms: Final = ("any",)
        self._library: Final = library
        self._kv: Final = kv
        self._kernels: Final = kernels
        self._tables: Final = tables
        rows = buckets.most_rows + 1
        self._most_pages: Final = max(1, min(kv.num_slots // tables.page_size, _MOST_PAGES // rows))
        fixed = max(self._shape(each).more_at for each in buckets)
        self._words: Final = Upload(fixed + _MORE + buckets.most_tokens, torch.int32, kv.device)
        self._pages: Final = torch.zeros(rows, self._most_pages, dtype=torch.int32, device=kv.device)
        self._windows: Final = None if tables.windows is None else tables.windows.on(kv.device).clone()
        self._changes = 0 if tables.windows is None else tables.windows.changes
        """How often window pages had changed when they were copied."""

    def fitting(self, rows: Sequence[Row]) -> Sequence[str]:
        held = max(pages_held(row, self._tables.page_size) for row in rows)
        masks = sum(row.num_tokens * -(-row.tail_mask.shape[1] // 32) for row in rows)
        own = sum(len(row.pages.own) for row in rows if row.pages.own is not None)
        more = own + len(self._kernels.spans) * masks
        return self.forms if held <= self._most_pages and more <= _MORE else ()

    def forward(self, bucket: Bucket, form: Any, write_slots: tuple[Tensor, Tensor]) -> TritonForward:
        longest = self._most_pages * self._tables.page_size
        planned = self._library.Planned(
            self._words.memory,
            self._pages,
            self._windows,
            self._shape(bucket),
            longest,
            gathered=True,
            page_size=self._tables.page_size,
        )
        return self._library.TritonForward(self._kv, self._kernels, write_slots, planned)

    def plan(self, rows: Sequence[Row], bucket: Bucket, form: Any, half: int) -> None:
        shape = self._shape(bucket)
        words, more = lay_out(rows, shape, self._tables.page_size)
        host, stop = self._words.host(half), 0
        for part in (words, *more):
            host[stop : stop + len(part)] = part
            stop += len(part)
        sent = self._words.send(half, stop)
        self._gather(rows, sent[shape.rows_at :][: FIELDS * len(rows)].view(-1, FIELDS)[:, Field.TABLE])
        self._follow()

    def _shape(self, bucket: Bucket) -> Shape:
        return self._kernels.shape(bucket.tokens, bucket.rows + 1)  # padding is a row of its own

    def _gather(self, rows: Sequence[Row], numbers: Tensor) -> None:
        """Copy the tables of rows, with these numbers, to where captured forwards read them."""
        most = max(pages_held(row, self._tables.page_size) for row in rows)
        if most:
            tables = self._tables.on(self._kv.device)[:, :most]
            self._pages[: len(rows), :most].copy_(tables.index_select(0, numbers))

    def _follow(self) -> None:
        """Copy window pages that are others than before."""
        windows = self._tables.windows
        if windows is not None and self._windows is not None and windows.changes != self._changes:
            self._changes = windows.changes
            self._windows.copy_(windows.on(self._kv.device))
