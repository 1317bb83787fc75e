"""Tree attention over paged KV in plain torch: the reference, on CPU and GPU.

Rows of similar size are padded into a bucket; per layer each bucket costs one gather of KV and one scaled_dot_product_attention.

    T   tokens in the batch      H, K   query heads, KV heads; G = H / K
    B   rows of a bucket         Q, L   most new tokens, most visible slots of its rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specsplit.model.attention.interface import ForwardBatch, tokens_first
from specsplit.model.attention.row_attention import RowForward
from specsplit.model.pages.batch import Ints, Row
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables
from specsplit.model.tensors.transfer import on_device

if TYPE_CHECKING:
    from specsplit.model.graphs import Buckets


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    size: int
    """B: the rows of the bucket."""
    queries: Tensor | None
    """[B * Q] index into T of each query, padding repeats the row's first; None if that is all of T in order."""
    slots: Tensor | slice
    """[B * L] slot of each visible token, padding is the row's first: another session's KV may hold NaN, and 0 times NaN is NaN.

    A slice if they are one run: then the KV is read where it is.
    """
    bias: Tensor | None
    """[B, 1, G * Q, L] 0 where a query sees a slot, the lowest finite number where not; None if all see all.

    Finite, so that a padded query, which sees nothing, gives some number and not NaN.
    """


@dataclass(frozen=True, slots=True, eq=False)
class TorchForward:
    """One planned forward (a ForwardBatch)."""

    kv: KVCache
    write_slots: Tensor
    """[T]"""
    buckets: tuple[_Bucket, ...]
    restore: Tensor | None
    """[T] index into the buckets' outputs end to end; None if they are T in order already."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        query = tokens_first(query)
        self.kv.write(layer, self.write_slots, tokens_first(key), tokens_first(value))
        parts = [_attend_bucket(bucket, query, self.kv.read(layer, bucket.slots), scaling) for bucket in self.buckets]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return (out if self.restore is None else out.index_select(0, self.restore)).unsqueeze(0)


class TorchAttention:
    """Plans forwards over one KV cache (an AttentionBackend). `group` is G: query heads per KV head."""

    def __init__(self, kv: KVCache, group: int, page_size: int) -> None:
        self._kv = kv
        self._group = group
        self._device = kv.data.device

    def plan(self, batch: InputBatch) -> ForwardBatch:
        if batch.new_run is None or not self._kv.in_place:
            return self.gathered(batch)
        return RowForward(self._kv, _row_slots(batch), batch.new_run, self._row_bias(batch.rows[0]))

    def gathered(self, batch: InputBatch) -> TorchForward:
        """Lay out any rows."""
        if len(batch.rows) == 1:  # nothing is padded
            bucket = _Bucket(1, None, _row_slots(batch), self._row_bias(batch.rows[0]))
            return TorchForward(self._kv, batch.write_slots, (bucket,), None)
        members: dict[tuple[int, int], list[int]] = {}
        for index, row in enumerate(batch.rows):
            members.setdefault(_bucket_key(row), []).append(index)
        buckets: list[_Bucket] = []
        restore = np.empty(len(batch.tokens), dtype=np.int64)
        offset = 0
        for indices in members.values():
            queries, real = _query_index(batch.starts[indices], batch.queries[indices])
            if queries.size == restore.size and len(members) == 1:
                return TorchForward(self._kv, batch.write_slots, (self._bucket(batch, indices, None),), None)
            restore[queries[real]] = offset + np.flatnonzero(real)
            offset += queries.size
            buckets.append(self._bucket(batch, indices, queries))
        return TorchForward(self._kv, batch.write_slots, tuple(buckets), self._tensor(restore))

    def static(self, tables: PageTables, buckets: Buckets) -> None:
        """Return None, since nothing can be captured: every batch has other kernels, and allocates."""

    def _row_bias(self, row: Row) -> Tensor | None:
        """The attention bias of a row that is not padded; None: it needs none."""
        if row.tail_mask.size == 1 or row.tail_mask.all():
            return None
        hidden = np.zeros((1, row.num_tokens, row.pages.length), dtype=np.bool_)
        np.logical_not(row.tail_mask, out=hidden[0, :, row.pages.length - row.tail_mask.shape[1] :])
        return self._bias(hidden)

    def _bucket(self, batch: InputBatch, indices: Sequence[int], queries: Ints | None) -> _Bucket:
        slots, rows = batch.slots(indices), [batch.rows[index] for index in indices]
        hidden = np.ones((len(rows), max(row.num_tokens for row in rows), slots.shape[1]), dtype=np.bool_)
        for row, unseen in zip(rows, hidden, strict=True):
            _show(row, unseen)
        return _Bucket(
            size=len(rows),
            queries=None if queries is None else self._tensor(queries.reshape(-1)),
            slots=slots.reshape(-1),
            bias=self._bias(hidden) if hidden.any() else None,
        )

    def _bias(self, hidden: NDArray[np.bool_]) -> Tensor:
        size, queries, length = hidden.shape
        dtype = self._kv.dtype
        bias = self._tensor(hidden.view(np.uint8)).to(dtype).mul_(torch.finfo(dtype).min)
        per_head = bias.unsqueeze(1).expand(size, self._group, queries, length)
        return per_head.reshape(size, 1, self._group * queries, length)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return on_device(array, self._device)


def plan_on_device(kv: KVCache, group: int, batch: DeviceBatch) -> TorchForward:
    """Lay out a batch that only the device knows, without waiting for it. `group` is G."""
    size, queries, length = batch.sees.shape
    dtype = kv.dtype
    bias = torch.zeros(batch.sees.shape, dtype=dtype, device=kv.data.device)
    bias.masked_fill_(~batch.sees, torch.finfo(dtype).min)
    per_head = bias.unsqueeze(1).expand(size, group, queries, length)
    bucket = _Bucket(size, None, batch.slots.reshape(-1), per_head.reshape(size, 1, group * queries, length))
    return TorchForward(kv, batch.write_slots, (bucket,), None)


def _row_slots(batch: InputBatch) -> Tensor | slice:
    """[L] of the only row."""
    return batch.slots([0]).reshape(-1) if batch.run is None else batch.run


def _bucket_key(row: Row) -> tuple[int, int]:
    """Rows that may share padding: new tokens within a factor of 2, visible tokens within a factor of 4 (all up to 1,024 alike)."""
    return (row.num_tokens - 1).bit_length(), ((row.pages.length - 1) >> 10).bit_length() // 2


def _query_index(starts: Ints, lengths: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Index into T [B, Q], and which of it is no padding."""
    steps = np.arange(lengths.max())
    real = steps < lengths[:, None]
    return starts[:, None] + np.where(real, steps, 0), real


def _show(row: Row, hidden: NDArray[np.bool_]) -> None:
    """Write into ones [Q, L] what each query of a row sees."""
    queries, tail = row.tail_mask.shape
    length = row.pages.length
    hidden[:queries, : length - tail] = False
    np.logical_not(row.tail_mask, out=hidden[:queries, length - tail : length])


def _attend_bucket(bucket: _Bucket, query: Tensor, seen: Tensor, scaling: float | None) -> Tensor:
    """query [T, H, D] over the bucket's KV `seen` [2, B * L, K, D] of one layer -> [B * Q, H, D]."""
    size, kv_heads, dim = bucket.size, seen.shape[2], seen.shape[3]
    if bucket.queries is not None:
        query = query.index_select(0, bucket.queries)
    group = query.shape[1] // kv_heads
    # Heads that share a KV head become further queries of it: no copy of the KV per head, and every SDPA kernel takes it.
    folded = query.reshape(size, -1, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(size, kv_heads, -1, dim)
    keys, values = seen.view(2, size, -1, kv_heads, dim).transpose(2, 3).unbind()
    out = scaled_dot_product_attention(folded, keys, values, attn_mask=bucket.bias, scale=scaling)
    return out.view(size, kv_heads, group, -1, dim).permute(0, 3, 1, 2, 4).reshape(-1, kv_heads * group, dim)
