"""Random batches for attention backends: prompt chunks, trees and a drafter's nodes over pages that lie crosswise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from specsplit.model import Geometry, KVCache, PagePool, PageTable, Row, ancestor_mask
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.windows import WindowPages


@dataclass(frozen=True)
class Ragged:
    """Rows of one forward, and the pool of their pages."""

    rows: list[Row]
    pool: PagePool

    def batch(self, device: torch.device) -> InputBatch:
        return InputBatch(self.rows, self.pool.tables, device)

    def filled(
        self,
        group: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        stored: torch.dtype | None = None,
    ) -> KVCache:
        """Random KV, NaN in every slot that no row sees."""
        kv = KVCache(Geometry.uniform(1, 2 * group, 2, head_dim), self.pool.num_slots, dtype, device, stored)
        kv.data.copy_(torch.full_like(kv.data, torch.nan, dtype=torch.float32))
        for row in self.rows:
            pages = self.pool.tables.listed(row.pages).astype(np.int64)
            slots = torch.from_numpy(self.pool.tables.slots_of(pages)[: row.pages.length]).to(device)
            key, value = torch.randn(2, len(slots), 2, head_dim, device=device).to(dtype)
            kv.write(0, slots, key, value)
        return kv

    def tokens(
        self, group: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of the new tokens, in the strides in which a model hands them on."""
        total = sum(row.num_tokens for row in self.rows)
        query, key, value = (
            torch.randn(1, heads, total, head_dim, device=device).to(dtype) for heads in (2 * group, 2, 2)
        )
        return query, key, value


@st.composite
def pools(draw: st.DrawFn, geometry: Geometry, page_size: int, most_rows: int = 5, most_tokens: int = 150) -> PagePool:
    """A pool for `ragged`. Every page has a window page, crosswise, where some layers are bounded, or there are none of them."""
    count = 4 * most_rows * (most_tokens // page_size + 2)
    if not geometry.bounded or draw(st.booleans()):
        return PagePool(count, page_size, geometry.spans)
    windows = WindowPages(count, count, page_size, geometry.bounded)
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(count)
    if draw(st.booleans()):  # pages that lie side by side have window pages that do too
        order.sort()
    windows.hold(order.tolist())
    return PagePool(count, page_size, geometry.spans, windows)


def cache_of(geometry: Geometry, pool: PagePool, dtype: torch.dtype) -> KVCache:
    """The KV of a pool on a CPU, NaN throughout."""
    window_slots = 0 if pool.windows is None else pool.num_slots
    kv = KVCache(geometry, pool.num_slots, dtype, torch.device("cpu"), window_slots=window_slots)
    for tensor in kv.tensors:
        tensor.fill_(torch.nan)
    return kv


def slots_in(kv: KVCache, number: int, pool: PagePool, slots: np.ndarray) -> np.ndarray:
    """Where a layer keeps what is in these slots."""
    return pool.windows.slots_of(slots) if kv.in_window[number] and pool.windows is not None else slots


@st.composite
def ragged(
    draw: st.DrawFn, page_size: int, most_rows: int = 5, most_tokens: int = 150, pool: PagePool | None = None
) -> Ragged:
    """`pool` is to have 4 * most_rows * (most_tokens // page_size + 2) free pages; None: a new one."""
    pool = pool or PagePool(4 * most_rows * (most_tokens // page_size + 2), page_size)
    tables = [PageTable(pool) for _ in range(draw(st.integers(1, most_rows)))]
    lengths = [draw(st.integers(1, most_tokens)) for _ in tables]
    for share in (3, 2, 1):  # pages of the tables take turns
        for table, length in zip(tables, lengths, strict=True):
            table.reserve(max(1, length // share))
    return Ragged([draw(_rows(table, length, pool)) for table, length in zip(tables, lengths, strict=True)], pool)


@st.composite
def _rows(draw: st.DrawFn, table: PageTable, length: int, pool: PagePool) -> Row:
    own = pool.allocate(draw(st.integers(0, pool.pages_for(length)))) if draw(st.booleans()) else None
    pages = table.upto(length, own)
    tail = draw(st.integers(1, min(length, 20)))
    kind = draw(st.sampled_from(["chunk", "tree", "nodes"]))
    if kind == "chunk":
        return Row.chunk([7] * tail, pages)
    parents = [-1, *(draw(st.integers(0, index - 1)) for index in range(1, tail))]
    if kind == "tree":
        return Row.tree([7] * tail, parents, pages)
    new = draw(st.integers(1, tail))  # the others' KV is there already
    mask = ancestor_mask(parents)[-new:]
    return Row([7] * new, length - tail + mask.sum(axis=1) - 1, pages, mask)
