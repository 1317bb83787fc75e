"""Tree attention over paged KV by FlashInfer's kernels (https://docs.flashinfer.ai), on a GPU.

`specsplit.model.flashinfer_plan` says what is computed; here it is handed to the package, once per forward for all layers. Every
part takes the FA2 kernels: they alone know masks, and they alone share a long row out over the device if there are few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from specsplit.model.flashinfer_plan import WHOLE_MASK, Group, PagedRows, plan_groups
from specsplit.model.input_batch import InputBatch
from specsplit.model.kv import KVCache
from specsplit.model.support import refusing
from specsplit.model.transfer import on_device, pinned

_WORKSPACE_BYTES: Final = 384 << 20
"""For parts of long rows: 2 * SMs * 128 queries of float32 for each query head of a KV head. 132 SMs, 8 heads of 256 make 277 MB."""
_DTYPES: Final = (torch.float16, torch.bfloat16)
_HEAD_DIMS: Final = (64, 128, 256)
_CAPABILITY: Final = (8, 0)


class Library(Protocol):
    """What is used of the package."""

    @property
    def BatchPrefillWithPagedKVCacheWrapper(self) -> Any: ...  # noqa: N802

    @property
    def merge_state_in_place(self) -> Any: ...


def obstacle(device: torch.device, dtype: torch.dtype | None = None, head_dim: int | None = None) -> str | None:
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
    if head_dim is not None and head_dim not in _HEAD_DIMS:
        return f"heads are {head_dim} wide, and it takes {', '.join(map(str, _HEAD_DIMS))}"
    return None


class _Part:
    """One wrapper, which keeps what it was told by `plan` for all layers."""

    def __init__(self, library: Library, kv: KVCache, group: int, page_size: int) -> None:
        self._device: Final = kv.data.device
        self._wrapper: Final = library.BatchPrefillWithPagedKVCacheWrapper(
            _workspace(self._device), kv_layout="NHD", backend="fa2"
        )
        paged = kv.data.unflatten(2, (-1, page_size))
        self._layers: Final = [layer.unbind() for layer in paged.unbind()]
        """By layer: keys and values, [pages, page_size, kv_heads, head_dim] each."""
        self._shape: Final = (paged.shape[4] * group, paged.shape[4], paged.shape[5], page_size)

    def plan(self, rows: PagedRows, *, causal: bool = False) -> _Part:
        arrays = (rows.qo_indptr, rows.kv_indptr, rows.indices, rows.last_page_len, rows.lengths)
        host = pinned(np.concatenate(arrays), self._device).split([len(array) for array in arrays])
        qo_indptr, kv_indptr, indices, last_page_len, lengths = host
        heads, kv_heads, head_dim, page_size = self._shape
        dtype = self._layers[0][0].dtype
        self._wrapper.plan(
            qo_indptr,
            kv_indptr,
            indices,
            last_page_len,
            heads,
            kv_heads,
            head_dim,
            page_size,
            packed_custom_mask=None if rows.mask is None else pinned(rows.mask, self._device),
            causal=causal,
            sm_scale=1.0,  # the layers say theirs, in `run`
            q_data_type=dtype,
            kv_data_type=dtype,
            max_token_per_sequence=int(np.diff(rows.qo_indptr).max()),
            seq_lens=lengths,
        )
        return self

    def run(self, layer: int, query: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        """query [T, H, D] -> [T, H, D], and the logarithm (base 2) of the sum of its weights, float32 [T, H]."""
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return self._wrapper.run(query, self._layers[layer], q_scale=scale, out=out, return_lse=True)


@dataclass(frozen=True, slots=True, eq=False)
class _PlannedGroup:
    tokens: Tensor | slice
    """Index into the new tokens of the batch."""
    seen: _Part
    prefix: _Part | None


@dataclass(frozen=True, slots=True, eq=False)
class FlashInferForward:
    """One planned forward (a ForwardBatch)."""

    kv: KVCache
    write_slots: Tensor
    """[T]"""
    groups: Sequence[_PlannedGroup]
    library: Library

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        self.kv.write(layer, self.write_slots, key, value)
        if len(self.groups) == 1:
            return self._attend(self.groups[0], layer, query, scaling)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for group in self.groups:
            out[group.tokens] = self._attend(group, layer, query[group.tokens], scaling)
        return out

    def _attend(self, group: _PlannedGroup, layer: int, query: Tensor, scaling: float | None) -> Tensor:
        out, weight = group.seen.run(layer, query, scaling)
        if group.prefix is not None:
            self.library.merge_state_in_place(out, weight, *group.prefix.run(layer, query, scaling))
        return out


class FlashInferAttention:
    """Plans forwards over one KV cache (an AttentionBackend); one is run before the next is planned.

    Raises LoadError if the package cannot be imported, or its kernels are neither there nor can be compiled.
    """

    def __init__(
        self,
        kv: KVCache,
        group: int,
        page_size: int,
        *,
        library: Library | None = None,
        whole_mask: int = WHOLE_MASK,
    ) -> None:
        self._kv = kv
        self._whole_mask = whole_mask
        with refusing("attention = flashinfer cannot be set up (attention = torch does without it)"):
            self._library: Library = library or cast("Library", import_module("flashinfer"))
            self._in_order, self._trees, self._prefix = (_Part(self._library, kv, group, page_size) for _ in range(3))
            self._compile(kv.data.new_zeros(1, kv.data.shape[3] * group, kv.data.shape[4]))

    def plan(self, batch: InputBatch) -> FlashInferForward:
        groups = [self._plan(group, batch) for group in plan_groups(batch.rows, batch.tables, self._whole_mask)]
        return FlashInferForward(self._kv, batch.write_slots, groups, self._library)

    def _plan(self, group: Group, batch: InputBatch) -> _PlannedGroup:
        tokens = group.tokens
        if not isinstance(tokens, slice):
            tokens = on_device(tokens, batch.tokens.device)
        if group.seen.mask is None:
            return _PlannedGroup(tokens, self._in_order.plan(group.seen, causal=True), None)
        prefix = None if group.prefix is None else self._prefix.plan(group.prefix)
        return _PlannedGroup(tokens, self._trees.plan(group.seen), prefix)

    def _compile(self, query: Tensor) -> None:
        """Run everything once for one token of whatever is stored: what has to be compiled is compiled now, and not in a step."""
        one = np.ones(1, dtype=np.int64)
        rows = PagedRows.of(one, [np.zeros(1, dtype=np.int32)], one, 1)
        mask = np.ones(1, dtype=np.uint8)
        self._library.merge_state_in_place(
            *self._trees.plan(replace(rows, mask=mask)).run(0, query, None),
            *self._prefix.plan(rows).run(0, query, None),
        )


@cache
def _workspace(device: torch.device) -> Tensor:
    """Shared by all wrappers of a device: what is in there is of no use once the kernel that wrote it has been merged."""
    return torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
