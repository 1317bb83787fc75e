"""Batches of which only the device knows what they are, laid out there for the kernels. Pages are of one slot."""

from __future__ import annotations

from typing import Any, Final

import torch

from specsplit.model.attention.triton.forward import LayerKernels, Planned, TritonForward
from specsplit.model.attention.triton.kernels import laying_out
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.geometry import Span
from specsplit.model.pages.kv import KVCache
from specsplit.sampling.kernels import launching_on

_LAY_OUT: Final[Any] = laying_out.lay_out
"""The kernel without types: triton has none for a launch."""


def plan_on_device(kv: KVCache, kernels: LayerKernels, batch: DeviceBatch) -> TritonForward:
    """Lay a batch out by one kernel. A context is the table of its row, and a tail its own list."""
    rows, new, tail = batch.sees.shape
    shape = kernels.even_shape(rows * new, rows)
    more = rows * (tail + len(shape.spans) * new * -(-tail // 32))
    words = torch.empty(shape.more_at + more, dtype=torch.int32, device=kv.device)
    with launching_on(kv.device):
        _LAY_OUT[rows, new](
            words,
            batch.lengths,
            batch.tail.contiguous(),
            batch.sees.contiguous().view(torch.uint8),
            batch.positions,
            tail,
            shape.rows_at,
            shape.low_at,
            shape.more_at,
            SIZES=tuple(shape.tiles),
            BOUNDS=tuple(map(_bound, shape.spans)),
            enable_fp_fusion=False,
        )
    longest = batch.context.shape[1] + tail
    tables = batch.context.to(torch.int32)
    planned = Planned(words, tables, None, shape, longest, gathered=False, page_size=1)
    return TritonForward(kv, kernels, (batch.write_slots, batch.write_slots), planned)


def _bound(span: Span) -> int:
    """A span as the kernel is compiled for it: tokens of a window, less than none for those of a chunk, 0 for all."""
    return -span.chunk if span.chunk is not None else span.window or 0
