"""Tree attention on a CPU by a kernel in C that reads KV where it is, whatever rows a forward has.

It is for rows of a few new tokens, as every step of a session has them; longer ones, which read a prompt, are attended to by torch.

    T   tokens in the batch      H, K   query heads, KV heads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.interface import ForwardBatch, tokens_first
from specsplit.model.attention.torch_attention import Bucket, TorchAttention, attend_bucket
from specsplit.model.native import library
from specsplit.model.native.attention import LayerKernel, SeenRow, SeenRows
from specsplit.model.native.library import WIDTH
from specsplit.model.pages.batch import Row, visible
from specsplit.model.pages.geometry import ALL, NO_ATTENTION, Layer, Pattern
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables

if TYPE_CHECKING:
    from specsplit.model.graphs import Buckets

MOST: Final = 64
"""New tokens of a row that the kernel attends to; of more torch's products are faster."""


def obstacle_on(device: torch.device) -> str | None:
    """Why the kernel cannot be had on a device, as a part of a sentence; None: it can."""
    return library.obstacle() if device.type == "cpu" else f"it is for a CPU, and the model is on {device}"


def obstacle(kv: KVCache) -> str | None:
    """Why the kernel cannot attend over `kv`, as a part of a sentence; None: it can."""
    if kv.device.type != "cpu":
        return obstacle_on(kv.device)
    if not kv.in_place or kv.dtype != torch.float32:
        return f"it is for keys and values in float32, and these are kept as {str(kv.stored).removeprefix('torch.')}"
    layers = ((index, layer) for index, layer in enumerate(kv.geometry.layers) if layer != NO_ATTENTION)
    problem = next((f"layer {index} {why}" for index, layer in layers if (why := _refused(layer))), None)
    return problem or library.obstacle()


def _refused(layer: Layer) -> str | None:
    if not layer.plain:
        return "has soft caps or sinks, and it computes a softmax of plain scores"
    if layer.key_width % WIDTH or layer.value_width % WIDTH:
        return f"has heads of {layer.key_width} and {layer.value_width}, and it takes multiples of {WIDTH}"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _LongRow:
    """A row that torch attends to."""

    tokens: slice
    """Its new tokens."""
    bucket: Bucket


@dataclass(frozen=True, slots=True, eq=False)
class NativeForward:
    """One planned forward (a ForwardBatch)."""

    kv: KVCache
    kernels: Mapping[int, LayerKernel]
    """By layer that attends."""
    write_slots: tuple[Tensor, Tensor]
    """[T] of layers that see all tokens, and of those that see a window."""
    rows: Sequence[SeenRows]
    """The short ones, by pattern."""
    long_rows: Sequence[_LongRow]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        query = tokens_first(query)
        self.kv.write(layer, self.write_slots[self.kv.in_window[layer]], tokens_first(key), tokens_first(value))
        geometry = self.kv.geometry
        described, pattern = geometry.layers[layer], geometry.pattern_of[layer]
        scaled = described.key_width**-0.5 if scaling is None else scaling
        out = self.kernels[layer].attend(self.rows[pattern], query, scaled, torch.get_num_threads())
        for row in self.long_rows:
            view = row.bucket.views[pattern]
            seen = self.kv.read(layer, view.slots)
            out[row.tokens] = attend_bucket(described, row.bucket, view.bias, query[row.tokens], seen, scaling, extras)
        return out.unsqueeze(0)


class NativeAttention:
    """Plans forwards over one KV cache (an AttentionBackend)."""

    def __init__(self, kv: KVCache, page_size: int) -> None:
        """Raises LoadError where the kernel cannot be had."""
        layers = ((index, layer) for index, layer in enumerate(kv.geometry.layers) if layer != NO_ATTENTION)
        self._kernels = {index: LayerKernel(layer.num_heads, *kv.planes(index)) for index, layer in layers}
        self._kv = kv
        self._patterns = kv.geometry.patterns
        self._torch = TorchAttention(kv, page_size)

    def plan(self, batch: InputBatch) -> ForwardBatch:
        short = [index for index, row in enumerate(batch.rows) if row.num_tokens <= MOST]
        if not short:
            return self._torch.plan(batch)
        long = (index for index, row in enumerate(batch.rows) if row.num_tokens > MOST)
        return NativeForward(
            self._kv,
            self._kernels,
            (batch.write_slots, batch.window_write_slots),
            [self._seen(batch, short, pattern) for pattern in self._patterns],
            [self._long_row(batch, index) for index in long],
        )

    def static(self, tables: PageTables, buckets: Buckets) -> None:
        """Return None: forwards on a CPU are not captured."""

    def _seen(self, batch: InputBatch, indices: Sequence[int], pattern: Pattern) -> SeenRows:
        slots = batch.slots(indices).numpy()
        rows = [batch.rows[index] for index in indices]
        starts = batch.starts[indices].tolist()
        if pattern.span == ALL:
            return SeenRows(
                [
                    SeenRow(start, own[: row.pages.length], row.tail_mask)
                    for start, own, row in zip(starts, slots, rows, strict=True)
                ]
            )
        return SeenRows([self._within(batch, *each, pattern) for each in zip(starts, slots, rows, strict=True)])

    def _within(
        self, batch: InputBatch, start: int, slots: np.ndarray[Any, np.dtype[np.int64]], row: Row, pattern: Pattern
    ) -> SeenRow:
        """What a row sees of its window."""
        first, sees = visible(row, pattern.span)
        listed = batch.in_window(torch.from_numpy(slots[first : row.pages.length]))
        assert isinstance(listed, Tensor), "slots that are listed stay so"
        return SeenRow(start, listed.numpy(), sees)

    def _long_row(self, batch: InputBatch, index: int) -> _LongRow:
        start = int(batch.starts[index])
        return _LongRow(slice(start, start + batch.rows[index].num_tokens), self._torch.bucket(batch, [index]))
