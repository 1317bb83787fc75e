"""Tree attention over paged KV by FlashInfer's kernels (https://docs.flashinfer.ai), on a GPU.

`specsplit.model.attention.flashinfer.plan` says what is computed; here it is handed to the package, once per forward for all layers of a
kind. Every part takes the FA2 kernels: they alone know masks, and they alone share a long row out over the device if there are few rows.

What those kernels take, in 0.6.13: a window (`window_left`) and a soft cap of scores in the template of every mask (`DefaultAttention` in
attention/variants.cuh), heads of 64, 128 and 256 ready-made (`get_default_config` of aot.py, with and without window and cap). Heads of
512 they refuse (`KernelTraits::IsInvalid` in attention/prefill.cuh), and keys of another width than their values they would read by the
strides of the keys, which csrc/batch_prefill.cu forbids. `run` hands on `sinks` to other backends alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.flashinfer.forward import FlashInferForward, Library, PagedKV, PlannedGroup
from specsplit.model.attention.flashinfer.latents import LatentPart, unserved_latents
from specsplit.model.attention.flashinfer.part import EagerPart
from specsplit.model.attention.flashinfer.plan import WHOLE_MASK, Group, PagedRows, plan_groups
from specsplit.model.attention.flashinfer.static import StaticFlashInfer
from specsplit.model.attention.support import refusing
from specsplit.model.pages.buckets import Buckets
from specsplit.model.pages.geometry import NO_ATTENTION, Geometry, Layer
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables
from specsplit.model.tensors.transfer import on_device

_log = logging.getLogger(__name__)

_DTYPES: Final = (torch.float16, torch.bfloat16)
_HEAD_DIMS: Final = (64, 128, 256)
_CAPABILITY: Final = (8, 0)


def obstacle(
    device: torch.device,
    dtype: torch.dtype | None = None,
    geometry: Geometry | None = None,
    stored: torch.dtype | None = None,
) -> str | None:
    """Why FlashInfer cannot attend over KV like this, and what to do; None if it can. None for what is not known yet.

    `stored`: what keys and values are kept as; None: as `dtype`.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"it needs an NVIDIA GPU, and the device is {device}; set device = cuda where there is one"
    why = uncompiled()
    if why is not None:
        return why
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} is older than compute capability 8.0 (Ampere), which it needs"
    if dtype is not None and dtype not in _DTYPES:
        return f"keys and values are {str(dtype).removeprefix('torch.')}; set dtype = bfloat16 or float16"
    return None if geometry is None else _unserved(geometry, narrow=stored is not None and stored != dtype)


def uncompiled() -> str | None:
    """Why its kernels cannot be had, and what to do; None if they are there, or can be compiled."""
    package = find_spec("flashinfer")
    if package is None:
        return "the package flashinfer is missing; install specsplit[gpu]"
    folders = map(Path, package.submodule_search_locations or ())
    if find_spec("flashinfer_jit_cache") or any(any((each / "data" / "aot").glob("*/*.so")) for each in folders):
        return None
    if find_spec("ninja") is None and which("ninja") is None:
        return "ninja, which builds its kernels, is missing; install specsplit[gpu]"
    if not any(map(which, _compilers())):
        return "there is no nvcc to compile its kernels; install the CUDA toolkit (CUDA_HOME says where), or flashinfer-jit-cache"
    return None


def _compilers() -> Iterator[str]:
    """Where FlashInfer looks for nvcc."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    yield str(Path(named) / "bin" / "nvcc") if named else "nvcc"
    if not named:
        yield "/usr/local/cuda/bin/nvcc"


def _unserved(geometry: Geometry, *, narrow: bool) -> str | None:
    """What a layer has that is not served, by number: windows, chunks, soft caps and sinks are, in layers that need not be alike."""
    attending = [(number, layer) for number, layer in enumerate(geometry.layers) if layer != NO_ATTENTION]
    for number, layer in attending:
        if layer.values_in_keys:
            why = unserved_latents(layer, narrow=narrow)
            if why is not None:
                return f"layer {number} {why}"
            continue
        if layer.key_width != layer.value_width:
            return f"layer {number} has keys of width {layer.key_width} and values of width {layer.value_width}, and it takes equal ones"
        if layer.key_width not in _HEAD_DIMS:
            return f"heads of layer {number} are {layer.key_width} wide, and it takes {', '.join(map(str, _HEAD_DIMS))}"
    return None if attending else "no layer has attention that it could compute"


class _Parts(NamedTuple):
    """The wrappers of one kind of layers."""

    in_order: EagerPart
    trees: EagerPart
    prefix: EagerPart

    @classmethod
    def of(cls, library: Library, kv: PagedKV, kind: Layer) -> _Parts:
        if not kind.values_in_keys:
            return cls(*(EagerPart(library, kv, kind, causal=causal) for causal in (True, False, False)))
        in_order = LatentPart(library, kv, kind, kv.page_size, causal=True)
        # A node's path is a list of slots, which are pages of one token.
        return cls(in_order, LatentPart(library, kv, kind, 1), LatentPart(library, kv, kind, kv.page_size))

    def plan(self, group: Group, device: torch.device) -> PlannedGroup:
        tokens = group.tokens if isinstance(group.tokens, slice) else on_device(group.tokens, device)
        if group.ordered:
            return PlannedGroup(tokens, self.in_order.plan(group.seen), None)
        prefix = None if group.prefix is None else self.prefix.plan(group.prefix)
        return PlannedGroup(tokens, self.trees.plan(group.seen), prefix)


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
            self._parts = [_Parts.of(self._library, self._paged, kind) for kind in self._paged.kinds.each]
            for kind, parts in zip(self._paged.kinds.each, self._parts, strict=True):
                self._compile(kind, parts)

    def plan(self, batch: InputBatch) -> FlashInferForward:
        kinds = self._paged.kinds
        groups = {
            (span, by_path): plan_groups(batch.rows, batch.tables.within(span), self._whole_mask, span, by_path=by_path)
            for span, by_path in dict.fromkeys((kind.span, kind.values_in_keys) for kind in kinds.each)
        }
        planned = [
            [parts.plan(group, self._kv.device) for group in groups[kind.span, kind.values_in_keys]]
            for kind, parts in zip(kinds.each, self._parts, strict=True)
        ]
        return self._forward((batch.write_slots, batch.window_write_slots), planned)

    def plan_read(self, batch: InputBatch) -> None:
        """Return None: it attends with all new tokens."""

    def static(self, tables: PageTables, buckets: Buckets) -> StaticFlashInfer | None:
        """How forwards attend that are captured for these buckets; None over latents, whose kernels have another grid in every forward."""
        if any(kind.values_in_keys for kind in self._paged.kinds.each):
            _log.info("no forward is captured: FlashInfer's kernels over latents have another grid in every forward")
            return None
        return StaticFlashInfer(self._library, self._paged, self._forward, tables, buckets, self._whole_mask)

    def _forward(
        self, write_slots: tuple[Tensor, Tensor], groups: Sequence[Sequence[PlannedGroup]]
    ) -> FlashInferForward:
        return FlashInferForward(self._kv, self._library, self._paged.kinds, write_slots, groups)

    def _compile(self, kind: Layer, parts: _Parts) -> None:
        """Run everything once for one token of whatever is stored: what has to be compiled is compiled now, and not in a step."""
        layer = self._paged.kinds.example(kind)
        query = torch.zeros(1, kind.num_heads, kind.key_width, dtype=self._kv.dtype, device=self._kv.device)
        one = np.ones(1, dtype=np.int64)
        rows = PagedRows.of(one, [np.zeros(1, dtype=np.int32)], one, 1)
        masked = rows if kind.values_in_keys else replace(rows, mask=np.ones(1, dtype=np.uint8))
        parts.in_order.plan(rows).run(layer, query, None)
        self._library.merge_state_in_place(
            *parts.trees.plan(masked).run(layer, query, None),
            *parts.prefix.plan(rows).run(layer, query, None),
        )
