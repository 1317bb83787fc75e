"""Tree attention on a CPU by kernels in C that read KV where it is, whatever rows a forward has.

T   tokens in the batch      H, K   query heads, KV heads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.interface import ForwardBatch, tokens_first
from specsplit.model.attention.torch_attention import plan_on_device
from specsplit.model.native import library
from specsplit.model.native.attention import LayerKernel, SeenRow, SeenRows
from specsplit.model.native.library import WIDTH
from specsplit.model.pages.batch import Row, visible
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.geometry import ALL, NO_ATTENTION, Layer, Pattern
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables

if TYPE_CHECKING:
    from specsplit.model.graphs import Buckets


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
class NativeForward:
    """One planned forward (a ForwardBatch)."""

    kv: KVCache
    kernels: Mapping[int, LayerKernel]
    """By layer that attends."""
    write_slots: tuple[Tensor, Tensor]
    """[T] of layers that see all tokens, and of those that see a window."""
    rows: Sequence[SeenRows]
    """By pattern; `start` of a row is an index into the queries, which may be fewer than T."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        query = tokens_first(query)
        self.kv.write(layer, self.write_slots[self.kv.in_window[layer]], tokens_first(key), tokens_first(value))
        geometry = self.kv.geometry
        described, pattern = geometry.layers[layer], geometry.pattern_of[layer]
        scaled = described.key_width**-0.5 if scaling is None else scaling
        return self.kernels[layer].attend(self.rows[pattern], query, scaled, torch.get_num_threads()).unsqueeze(0)


class NativeAttention:
    """Plans forwards over one KV cache (an AttentionBackend)."""

    def __init__(self, kv: KVCache, page_size: int) -> None:
        """Raises LoadError where the kernel cannot be had."""
        layers = ((index, layer) for index, layer in enumerate(kv.geometry.layers) if layer != NO_ATTENTION)
        self._kernels = {index: LayerKernel(layer.num_heads, *kv.planes(index)) for index, layer in layers}
        self._kv = kv
        self._patterns = kv.geometry.patterns

    def plan(self, batch: InputBatch) -> ForwardBatch:
        return self._forward(batch, [self._seen(batch, pattern) for pattern in self._patterns])

    def plan_read(self, batch: InputBatch) -> ForwardBatch:
        return self._forward(batch, [_read(batch, self._seen(batch, pattern)) for pattern in self._patterns])

    def plan_on_device(self, batch: DeviceBatch) -> ForwardBatch:
        """Lay it out for torch: the kernel reads rows of the host."""
        return plan_on_device(self._kv, batch)

    def static(self, tables: PageTables, buckets: Buckets) -> None:
        """Return None: forwards on a CPU are not captured."""

    def _forward(self, batch: InputBatch, rows: Sequence[Sequence[SeenRow]]) -> NativeForward:
        writes = batch.write_slots, batch.window_write_slots
        return NativeForward(self._kv, self._kernels, writes, [SeenRows(each) for each in rows])

    def _seen(self, batch: InputBatch, pattern: Pattern) -> list[SeenRow]:
        rows = batch.rows
        slots, starts = batch.slots(range(len(rows))).numpy(), batch.starts.tolist()
        if pattern.span == ALL:
            return [
                SeenRow(start, own[: row.pages.length], row.tail_mask)
                for start, own, row in zip(starts, slots, rows, strict=True)
            ]
        return [self._within(batch, *each, pattern) for each in zip(starts, slots, rows, strict=True)]

    def _within(
        self, batch: InputBatch, start: int, slots: np.ndarray[Any, np.dtype[np.int64]], row: Row, pattern: Pattern
    ) -> SeenRow:
        """What a row sees of its window."""
        first, sees = visible(row, pattern.span)
        listed = batch.in_window(torch.from_numpy(slots[first : row.pages.length]))
        assert isinstance(listed, Tensor), "slots that are listed stay so"
        return SeenRow(start, listed.numpy(), sees)


def _read(batch: InputBatch, rows: Sequence[SeenRow]) -> list[SeenRow]:
    """Rows as far as their logits are wanted, end to end."""
    wanted = [list(row.logits_at) for row in batch.rows]
    starts = accumulate(map(len, wanted), initial=0)
    return [SeenRow(start, row.slots, row.sees[at]) for start, row, at in zip(starts, rows, wanted, strict=False) if at]
