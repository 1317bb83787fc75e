"""Tree attention over paged KV in plain torch: the reference, on CPU and GPU.

Rows of similar size are padded into a bucket; per layer each bucket costs one gather of KV and one scaled_dot_product_attention.

    T   tokens in the batch      H, K   query heads, KV heads; G = H / K
    B   rows of a bucket         Q, L   most new tokens, most slots that one of its rows sees

On a CPU a long chunk is a bucket of its own, and is attended to in pieces.

Layers of another span or another G see the same buckets through other slots and masks: a bucket has those of each pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.attention.interface import ForwardBatch, tokens_first
from specsplit.model.attention.pieces import Bias, attend_by, is_cut, pieces_of
from specsplit.model.attention.row_attention import RowForward, RowView
from specsplit.model.pages.batch import Ints, Row, visible
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.geometry import ALL, Layer, Pattern, Span
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables
from specsplit.model.tensors.transfer import on_device

if TYPE_CHECKING:
    from specsplit.model.graphs import Buckets


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What the layers of one pattern see of a bucket."""

    slots: Tensor | slice
    """[B * L] slot of each visible token, padding is the row's first: another session's KV may hold NaN, and 0 times NaN is NaN.

    A slice if they are one run: then the KV is read where it is.
    """
    bias: Bias
    """[B, 1, G * Q, L] 0 where a query sees a slot, the lowest finite number where not; None if all see all.

    Finite, so that a padded query, which sees nothing, gives some number and not NaN. In the place of it the pieces of a chunk that is cut.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Rows that are attended to at once."""

    size: int
    """B: the rows of the bucket."""
    queries: Tensor | None
    """[B * Q] index into T of each query, padding repeats the row's first; None if that is all of T in order."""
    views: Sequence[View]
    """By pattern."""


@dataclass(frozen=True, slots=True, eq=False)
class TorchForward:
    """One planned forward (a ForwardBatch)."""

    kv: KVCache
    write_slots: tuple[Tensor, Tensor]
    """[T] of layers that see all tokens, and of those that see a window."""
    buckets: tuple[Bucket, ...]
    restore: Tensor | None
    """[T] index into the buckets' outputs end to end; None if they are T in order already."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        query = tokens_first(query)
        self.kv.write(layer, self.write_slots[self.kv.in_window[layer]], tokens_first(key), tokens_first(value))
        geometry = self.kv.geometry
        described, pattern = geometry.layers[layer], geometry.pattern_of[layer]
        parts: list[Tensor] = []
        for bucket in self.buckets:
            view = bucket.views[pattern]
            seen = self.kv.read(layer, view.slots)
            parts.append(_attend_bucket(described, bucket, view.bias, query, seen, scaling, extras))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return (out if self.restore is None else out.index_select(0, self.restore)).unsqueeze(0)


class TorchAttention:
    """Plans forwards over one KV cache (an AttentionBackend), whatever its layers are."""

    def __init__(self, kv: KVCache, page_size: int) -> None:
        self._kv = kv
        self._patterns = kv.geometry.patterns

    def plan(self, batch: InputBatch) -> ForwardBatch:
        new = batch.new_run
        if new is None or not self._kv.in_place:
            return self.gathered(batch)
        return RowForward(self._kv, self._row_views(batch), new, batch.in_window(new))

    def gathered(self, batch: InputBatch) -> TorchForward:
        """Lay out any rows."""
        write_slots = batch.write_slots, batch.window_write_slots
        if len(batch.rows) == 1:  # nothing is padded
            views = [View(*view) for view in self._row_views(batch)]
            return TorchForward(self._kv, write_slots, (Bucket(1, None, views),), None)
        members: dict[tuple[int, ...], list[int]] = {}
        for index, row in enumerate(batch.rows):
            key = (index,) if self._cuts(row) else _bucket_key(row)
            members.setdefault(key, []).append(index)
        buckets: list[Bucket] = []
        restore = np.empty(len(batch.tokens), dtype=np.int64)
        offset = 0
        for indices in members.values():
            queries, real = _query_index(batch.starts[indices], batch.queries[indices])
            if queries.size == restore.size and len(members) == 1:
                return TorchForward(self._kv, write_slots, (self._bucket(batch, indices, None),), None)
            restore[queries[real]] = offset + np.flatnonzero(real)
            offset += queries.size
            buckets.append(self._bucket(batch, indices, queries))
        return TorchForward(self._kv, write_slots, tuple(buckets), self._tensor(restore))

    def plan_read(self, batch: InputBatch) -> None:
        """Return None: it attends with all new tokens."""

    def plan_on_device(self, batch: DeviceBatch) -> ForwardBatch:
        return plan_on_device(self._kv, batch)

    def static(self, tables: PageTables, buckets: Buckets) -> None:
        """Return None, since nothing can be captured: every batch has other kernels, and allocates."""

    def _row_views(self, batch: InputBatch) -> list[RowView]:
        """What each pattern sees of a row that is not padded."""
        return [self._row_view(batch, pattern) for pattern in self._patterns]

    def _row_view(self, batch: InputBatch, pattern: Pattern) -> RowView:
        row = batch.rows[0]
        if pattern.span == ALL:
            return RowView(_row_slots(batch, 0), self._row_bias(row, pattern.group))
        first, seen = visible(row, pattern.span)
        return RowView(batch.in_window(_row_slots(batch, first)), self._bias_of(~seen[None], pattern.group))

    def _cuts(self, row: Row) -> bool:
        return self._kv.device.type == "cpu" and is_cut(row)

    def _row_bias(self, row: Row, group: int) -> Bias:
        """The attention bias of a row that is not padded, and sees all of its path; pieces where it is cut, None where it needs none."""
        if self._cuts(row):
            return pieces_of(row, partial(self._bias, group=group))
        if row.tail_mask.size == 1 or row.tail_mask.all():
            return None
        hidden = np.zeros((1, row.num_tokens, row.pages.length), dtype=np.bool_)
        np.logical_not(row.tail_mask, out=hidden[0, :, row.pages.length - row.tail_mask.shape[1] :])
        return self._bias(hidden, group)

    def _bucket(self, batch: InputBatch, indices: Sequence[int], queries: Ints | None = None) -> Bucket:
        """Lay out some rows; queries [B, Q]: index into T of each, None if they are all that is attended to, in order."""
        return Bucket(
            size=len(indices),
            queries=None if queries is None else self._tensor(queries.reshape(-1)),
            views=[self._view(batch, indices, pattern) for pattern in self._patterns],
        )

    def _view(self, batch: InputBatch, indices: Sequence[int], pattern: Pattern) -> View:
        slots, rows = batch.slots(indices), [batch.rows[index] for index in indices]
        most = max(row.num_tokens for row in rows)
        if pattern.span == ALL and len(rows) == 1:
            return View(slots.reshape(-1), self._row_bias(rows[0], pattern.group))
        if pattern.span == ALL:
            hidden = np.ones((len(rows), most, slots.shape[1]), dtype=np.bool_)
            for row, unseen in zip(rows, hidden, strict=True):
                _show(row, unseen)
        else:
            hidden, listed = _hidden_within(rows, pattern.span, most)
            slots = batch.in_window(slots.gather(1, self._tensor(listed)))
            assert isinstance(slots, Tensor), "slots that are listed stay so"
        return View(slots.reshape(-1), self._bias_of(hidden, pattern.group))

    def _bias_of(self, hidden: NDArray[np.bool_], group: int) -> Tensor | None:
        """The bias that hides what is `hidden` [B, Q, L]; None: nothing is."""
        return self._bias(hidden, group) if hidden.any() else None

    def _bias(self, hidden: NDArray[np.bool_], group: int) -> Tensor:
        size, queries, length = hidden.shape
        dtype = self._kv.dtype
        bias = self._tensor(hidden.view(np.uint8)).to(dtype).mul_(torch.finfo(dtype).min)
        per_head = bias.unsqueeze(1).expand(size, group, queries, length)
        return per_head.reshape(size, 1, group * queries, length)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return on_device(array, self._kv.device)


def plan_on_device(kv: KVCache, batch: DeviceBatch) -> TorchForward:
    """Lay out a batch that only the device knows, without waiting for it."""
    real = torch.arange(batch.context.shape[1], device=kv.device) < batch.lengths.unsqueeze(1)
    sees = torch.cat((real.unsqueeze(1).expand(-1, batch.sees.shape[1], -1), batch.sees), 2)
    slots = torch.cat((batch.context, batch.tail), 1).reshape(-1)
    views = [View(slots, _bias_on_device(kv, batch, sees, pattern)) for pattern in kv.geometry.patterns]
    return TorchForward(kv, (batch.write_slots, batch.write_slots), (Bucket(len(sees), None, views),), None)


def _bias_on_device(kv: KVCache, batch: DeviceBatch, sees: Tensor, pattern: Pattern) -> Tensor:
    """[B, 1, G * Q, L] of the layers of a pattern, given what each new token sees of all that its row lists [B, Q, L]."""
    size, queries, length = sees.shape
    if pattern.span != ALL:
        reach = pattern.span.reach(batch.positions).view(size, queries, 1)
        sees = sees & (sees.flip(2).cumsum(2).flip(2) <= reach)
    bias = torch.zeros(sees.shape, dtype=kv.dtype, device=kv.device)
    bias.masked_fill_(~sees, torch.finfo(kv.dtype).min)
    per_head = bias.unsqueeze(1).expand(size, pattern.group, queries, length)
    return per_head.reshape(size, 1, pattern.group * queries, length)


def _row_slots(batch: InputBatch, first: int) -> Tensor | slice:
    """[L] of the only row, from local index `first` on."""
    if batch.run is None:
        return batch.slots([0]).reshape(-1)[first:]
    return slice(batch.run.start + first, batch.run.stop)


def _hidden_within(rows: Sequence[Row], span: Span, most: int) -> tuple[NDArray[np.bool_], Ints]:
    """What of the tokens that rows see within a span is hidden from each of `most` queries [B, most, L] -> their local indices too [B, L].

    Behind those of a shorter row comes its first, over and over.
    """
    seen = [visible(row, span) for row in rows]
    hidden = np.ones((len(rows), most, max(mask.shape[1] for _, mask in seen)), dtype=np.bool_)
    listed = np.zeros((len(rows), hidden.shape[2]), dtype=np.int64)
    for index, (first, mask) in enumerate(seen):
        queries, length = mask.shape
        np.logical_not(mask, out=hidden[index, :queries, :length])
        listed[index, :length] = np.arange(length)
        listed[index] += first
    return hidden, listed


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


def _attend_bucket(
    layer: Layer,
    bucket: Bucket,
    bias: Bias,
    query: Tensor,
    seen: tuple[Tensor, Tensor],
    scaling: float | None,
    extras: dict[str, Any],
) -> Tensor:
    """query [T, H, D] over the bucket's keys and values `seen` [B * L, K, width] of one layer -> [B * Q, H, value width]."""
    size, (keys, values) = bucket.size, (each.unflatten(0, (bucket.size, -1)).transpose(1, 2) for each in seen)
    kv_heads = keys.shape[1]
    if bucket.queries is not None:
        query = query.index_select(0, bucket.queries)
    group, dim = query.shape[1] // kv_heads, query.shape[2]
    folded = query.reshape(size, -1, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(size, kv_heads, -1, dim)
    out = attend_by(layer, folded, keys, values, bias, scaling, extras)
    dim = values.shape[3]
    return out.view(size, kv_heads, group, -1, dim).permute(0, 3, 1, 2, 4).reshape(-1, kv_heads * group, dim)
