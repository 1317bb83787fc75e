"""Tree attention over paged KV by Triton kernels of our own, on a GPU.

A layout of the rows is all that is planned (`layout`): page tables are read where they are kept on the device, and nothing is scheduled on
the host. Every row takes the same kernel, whatever it is: a chunk, a tree, a drafter's nodes. What only the device knows, as the levels of
a descent, is laid out there, by a kernel too (`device`).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.flashinfer.workspace import processors
from specsplit.model.attention.support import refusing
from specsplit.model.attention.triton.layout import lay_out
from specsplit.model.attention.triton.static import StaticTriton
from specsplit.model.attention.triton.tiles import MOST_LINES, SHARE, WIDEST, WIDEST_EXACT, where_sizes_change
from specsplit.model.pages.batch import Row
from specsplit.model.pages.buckets import Buckets
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.geometry import NO_ATTENTION, Geometry
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables, RowPages
from specsplit.model.tensors.transfer import on_device
from specsplit.sampling import kernels

if TYPE_CHECKING:
    from specsplit.model.attention.triton.forward import Planned, TritonForward

_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
_CAPABILITY: Final = (8, 0)
_CAPABILITY_E4M3: Final = (8, 9)


def obstacle_on(device: torch.device) -> str | None:
    """Why the kernels cannot be had on a device, and what to do; None: they can."""
    problem = kernels.obstacle(device)
    if problem is None and torch.cuda.get_device_capability(device) < _CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} is older than compute capability 8.0 (Ampere), which it needs"
    return problem


def obstacle(kv: KVCache) -> str | None:
    """Why the kernels cannot attend over `kv`, as a part of a sentence; None: they can."""
    problem = obstacle_on(kv.device)
    if problem is not None:
        return problem
    if kv.dtype not in _DTYPES:
        return f"keys and values are {str(kv.dtype).removeprefix('torch.')}; set dtype = bfloat16, float16 or float32"
    if kv.stored == torch.float8_e4m3fn and torch.cuda.get_device_capability(kv.device) < _CAPABILITY_E4M3:
        return "keys and values of fp8_e4m3 take compute capability 8.9 (Ada) or more; set kv_cache_dtype = auto"
    return unserved(kv.geometry, kv.dtype)


def unserved(geometry: Geometry, dtype: torch.dtype) -> str | None:
    """What a layer has that is not served in a type, by number; None: all of it is."""
    keys, values = WIDEST_EXACT if dtype == torch.float32 else WIDEST
    attending = [(number, layer) for number, layer in enumerate(geometry.layers) if layer != NO_ATTENTION]
    for number, layer in attending:
        if layer.key_width > keys or layer.value_width > values:
            widths = f"{layer.key_width} and {layer.value_width} wide"
            return f"heads of layer {number} are {widths}, and it takes keys of {keys} and values of {values} at most"
    return None if attending else "no layer has attention that it could compute"


class TritonAttention:
    """Plans forwards over one KV cache (an AttentionBackend)."""

    def __init__(
        self, kv: KVCache, page_size: int, *, processors_of_device: int | None = None, share: int = SHARE
    ) -> None:
        """`share`: keys that are worth a program of their own. Raises LoadError if the kernels cannot be compiled."""
        self._kv: Final = kv
        self._page_size: Final = page_size
        with refusing("attention = triton cannot be set up (attention = torch does without it)"):
            self._library: Final[Any] = import_module("specsplit.model.attention.triton.forward")
            count = processors(kv.device) if processors_of_device is None else processors_of_device
            self._kernels: Final = self._library.LayerKernels(kv, count, share)
            if kv.device.type == "cuda":
                self._compile()

    def plan(self, batch: InputBatch) -> TritonForward:
        planned = self._planned(batch.rows, batch.tables.on(self._kv.device), _windows(batch.tables, self._kv.device))
        writes = batch.write_slots, batch.window_write_slots
        return self._library.TritonForward(self._kv, self._kernels, writes, planned)

    def plan_on_device(self, batch: DeviceBatch) -> TritonForward:
        return import_module("specsplit.model.attention.triton.device").plan_on_device(self._kv, self._kernels, batch)

    def plan_read(self, batch: InputBatch) -> None:
        """Return None: it attends with all new tokens."""

    def static(self, tables: PageTables, buckets: Buckets) -> StaticTriton:
        return StaticTriton(self._library, self._kv, self._kernels, tables, buckets)

    def _planned(self, rows: Sequence[Row], tables: Tensor, windows: Tensor | None) -> Planned:
        shape = self._kernels.shape(sum(row.num_tokens for row in rows), len(rows))
        words, more = lay_out(rows, shape, self._page_size)
        longest = max(row.pages.length for row in rows)
        placed = on_device(np.concatenate([words, *more]), self._kv.device)
        return self._library.Planned(placed, tables, windows, shape, longest, gathered=False, page_size=self._page_size)

    def _compile(self) -> None:
        """Run everything once over whatever is stored: what has to be compiled is compiled now, and not in a step."""
        device, layers = self._kv.device, self._kv.geometry.layers
        tables = torch.zeros(1, 1, dtype=torch.int32, device=device)
        windows = torch.zeros(1, dtype=torch.int64, device=device) if any(self._kv.in_window) else None
        for tokens in (1, MOST_LINES):
            pages = RowPages.alone(np.zeros(-(-tokens // self._page_size), dtype=np.int64), tokens)
            planned = self._planned([Row.chunk([0] * tokens, pages)], tables, windows)
            for kind in self._kernels.kinds:
                query = torch.zeros(tokens, kind.num_heads, kind.key_width, dtype=self._kv.dtype, device=device)
                sinks = query.new_zeros(kind.num_heads) if kind.sinks else None
                for count in (1, 2):
                    self._kernels.attend(layers.index(kind), planned, query, None, sinks, count)
        if self._page_size == 1:  # a drafter's, which descends
            for tokens in where_sizes_change(self._kernels.kinds):
                self.plan_on_device(_blank(tokens, device))


def _blank(tokens: int, device: torch.device) -> DeviceBatch:
    """A row of so many new tokens behind one other, all of them in the first slot."""
    slots = torch.zeros(1, tokens, dtype=torch.int64, device=device)
    sees = torch.ones(1, tokens, tokens, dtype=torch.bool, device=device)
    return DeviceBatch(slots[0], slots[0], slots[0], slots[:, :1], slots[0, :1] + 1, slots, sees)


def _windows(tables: PageTables, device: torch.device) -> Tensor | None:
    return None if tables.windows is None else tables.windows.on(device)
