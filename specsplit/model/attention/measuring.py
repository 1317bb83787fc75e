"""How long a backend takes for the attention of a step, measured at load over KV that nobody uses yet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import torch
from torch import Tensor

from specsplit.clock import Clock, SystemClock
from specsplit.errors import Exhausted
from specsplit.model.attention.interface import AttentionBackend
from specsplit.model.attention.softmax import SINKS
from specsplit.model.pages.batch import Row
from specsplit.model.pages.geometry import NO_ATTENTION, Layer
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.tensors.transfer import wait_for

_ROWS: Final = 8
_LONGEST: Final = 4096
"""Tokens that a row sees: so many that kernels take longer than launching them, which captured forwards do not do."""
_PARENTS: Final = (-1, 0, 0, 1, 1, 2, 2, 3)
"""A small tree, as a step verifies."""
_REPEATS: Final = 4


@torch.inference_mode()
def step_seconds(backend: AttentionBackend, kv: KVCache, pool: PagePool, clock: Clock | None = None) -> float | None:
    """Seconds of a plan and of attention in all layers, the least of a few; None: there are too few pages for a step."""
    clock = clock or SystemClock()
    length = min(_LONGEST, pool.free_pages // _ROWS * pool.page_size)
    if length < len(_PARENTS):
        return None
    try:
        with _rows(pool, length) as rows:
            batch = InputBatch(rows, pool.tables, kv.device)
            return min(_once(backend, batch, kv, clock) for _ in range(_REPEATS))
    except Exhausted:
        return None


@contextmanager
def _rows(pool: PagePool, length: int) -> Iterator[list[Row]]:
    with ExitStack() as stack:
        rows = list[Row]()
        for _ in range(_ROWS):
            table = PageTable(pool)
            stack.callback(table.release)
            table.reserve(length)
            table.see(length - len(_PARENTS), length)
            rows.append(Row.tree([0] * len(_PARENTS), list(_PARENTS), table.upto(length)))
        yield rows


def _once(backend: AttentionBackend, batch: InputBatch, kv: KVCache, clock: Clock) -> float:
    asked = [
        (number, *_tokens(layer, len(batch.tokens), kv))
        for number, layer in enumerate(kv.geometry.layers)
        if layer != NO_ATTENTION
    ]
    wait_for(kv.device)
    started = clock.now()
    planned = backend.plan(batch)
    for number, query, key, value, sinks in asked:
        planned.attend(number, query, key, value, None, {SINKS: sinks})
    wait_for(kv.device)
    return max(clock.now() - started, math.ulp(0.0))


def _tokens(layer: Layer, count: int, kv: KVCache) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key and value of so many tokens, and sinks: of zeros, each layer's the same memory as that of others."""
    query = torch.zeros(1, layer.num_heads, 1, layer.key_width, dtype=kv.dtype, device=kv.device)
    key = query[:, : layer.kv_heads]
    value = torch.zeros(1, layer.kv_heads, 1, layer.value_width, dtype=kv.dtype, device=kv.device)
    sinks = torch.zeros(layer.num_heads, dtype=kv.dtype, device=kv.device)
    return query.repeat(1, 1, count, 1), key.repeat(1, 1, count, 1), value.repeat(1, 1, count, 1), sinks
