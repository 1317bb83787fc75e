"""Tree attention over paged KV by FlashInfer's kernels (https://docs.flashinfer.ai), on a GPU.

`specsplit.model.attention.flashinfer.plan` says what is computed; here it is handed to the package, once per forward for all layers. Every
part takes the FA2 kernels: they alone know masks, and they alone share a long row out over the device if there are few rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.flashinfer.forward import FlashInferForward, Library, Paged, PagedKV, PlannedGroup
from specsplit.model.attention.flashinfer.plan import WHOLE_MASK, Group, PagedRows, plan_groups
from specsplit.model.attention.flashinfer.static import StaticFlashInfer
from specsplit.model.attention.support import refusing
from specsplit.model.pages.buckets import Buckets
from specsplit.model.pages.geometry import ALL, Geometry
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables
from specsplit.model.tensors.transfer import Event, given_so_far, on_device, pinned

_DTYPES: Final = (torch.float16, torch.bfloat16)
_HEAD_DIMS: Final = (64, 128, 256)
_CAPABILITY: Final = (8, 0)


def obstacle(device: torch.device, dtype: torch.dtype | None = None, geometry: Geometry | None = None) -> str | None:
    """Why FlashInfer cannot attend over KV like this, and what to do; None if it can. None for what is not known yet."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"it needs an NVIDIA GPU, and the device is {device}; set device = cuda where there is one"
    missing = [name for name in ("flashinfer", "ninja") if find_spec(name) is None]
    if missing:
        return f"the package {missing[0]} is missing; install specsplit[gpu]"
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} is older than compute capability 8.0 (Ampere), which it needs"
    if dtype is not None and dtype not in _DTYPES:
        return f"keys and values are {str(dtype).removeprefix('torch.')}; set dtype = bfloat16 or float16"
    return None if geometry is None else _unserved(geometry)


def _unserved(geometry: Geometry) -> str | None:
    """What a layer has that is not served: layers that are all alike are, whose heads are of some widths, and which see all tokens."""
    first = geometry.layers[0]
    for index, layer in enumerate(geometry.layers):
        if layer.key_width != layer.value_width:
            return f"layer {index} has keys of width {layer.key_width} and values of width {layer.value_width}"
        if layer.key_width not in _HEAD_DIMS:
            return f"heads of layer {index} are {layer.key_width} wide, and it takes {', '.join(map(str, _HEAD_DIMS))}"
        if layer.span != ALL:
            return f"layer {index} sees {layer.span}, and it is given no masks of these"
        if not layer.plain:
            return f"layer {index} has {'sinks' if layer.sinks else 'a soft cap'} in its attention"
        if layer != first:
            return f"layer {index} has other heads than layer 0 ({layer} and {first})"
    return None


class _Part:
    """One wrapper (a Part), which keeps what it was told by `plan`.

    Its plan is copied to the device out of pinned memory of its own, which the next plan overwrites: that waits for the copy.
    """

    def __init__(self, library: Library, kv: PagedKV) -> None:
        self._kv: Final = kv
        self._wrapper: Final = library.BatchPrefillWithPagedKVCacheWrapper(
            kv.workspace(), kv_layout="NHD", backend="fa2"
        )
        self._planned: Event | None = None
        """Behind the copies of the latest plan; None: there is none that has to be waited for."""

    def plan(self, rows: PagedRows, *, causal: bool = False) -> _Part:
        arrays = (rows.qo_indptr, rows.kv_indptr, rows.last_page_len, rows.lengths, rows.indices)
        parts = pinned(np.concatenate(arrays), self._kv.device).split([len(array) for array in arrays])
        qo_indptr, kv_indptr, last_page_len, lengths, indices = parts
        mask = None if rows.mask is None else pinned(rows.mask, self._kv.device)
        if self._planned is not None:
            self._planned.synchronize()  # a forward ago: done long since, unless nobody asked what came of that
        self._kv.plan(self._wrapper, rows, Paged(qo_indptr, kv_indptr, last_page_len, lengths, indices, mask), causal)
        self._planned = given_so_far(self._kv.device)
        return self

    def run(self, layer: int, query: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        return self._kv.run(self._wrapper, layer, query, scaling)


class FlashInferAttention:
    """Plans forwards over one KV cache (an AttentionBackend); one is run before the next is planned.

    Raises LoadError if the package cannot be imported, or its kernels are neither there nor can be compiled.
    """

    def __init__(
        self,
        kv: KVCache,
        page_size: int,
        *,
        library: Library | None = None,
        whole_mask: int = WHOLE_MASK,
    ) -> None:
        self._kv = kv
        self._whole_mask = whole_mask
        with refusing("attention = flashinfer cannot be set up (attention = torch does without it)"):
            self._library: Library = library or cast("Library", import_module("flashinfer"))
            self._paged: Final = PagedKV(kv, page_size)
            self._in_order, self._trees, self._prefix = (_Part(self._library, self._paged) for _ in range(3))
            first = kv.geometry.layers[0]
            self._compile(torch.zeros(1, first.num_heads, first.key_width, dtype=kv.dtype, device=kv.device))

    def plan(self, batch: InputBatch) -> FlashInferForward:
        groups = [self._plan(group, batch) for group in plan_groups(batch.rows, batch.tables, self._whole_mask)]
        return FlashInferForward(self._kv, self._library, batch.write_slots, groups)

    def static(self, tables: PageTables, buckets: Buckets) -> StaticFlashInfer:
        """How forwards attend that are captured for these buckets."""
        attends = partial(FlashInferForward, self._kv, self._library)
        return StaticFlashInfer(self._library, self._paged, attends, tables, buckets, self._whole_mask)

    def _plan(self, group: Group, batch: InputBatch) -> PlannedGroup:
        tokens = group.tokens
        if not isinstance(tokens, slice):
            tokens = on_device(tokens, batch.tokens.device)
        if group.seen.mask is None:
            return PlannedGroup(tokens, self._in_order.plan(group.seen, causal=True), None)
        prefix = None if group.prefix is None else self._prefix.plan(group.prefix)
        return PlannedGroup(tokens, self._trees.plan(group.seen), prefix)

    def _compile(self, query: Tensor) -> None:
        """Run everything once for one token of whatever is stored: what has to be compiled is compiled now, and not in a step."""
        one = np.ones(1, dtype=np.int64)
        rows = PagedRows.of(one, [np.zeros(1, dtype=np.int32)], one, 1)
        mask = np.ones(1, dtype=np.uint8)
        self._library.merge_state_in_place(
            *self._trees.plan(replace(rows, mask=mask)).run(0, query, None),
            *self._prefix.plan(rows).run(0, query, None),
        )
