"""A forward that FlashInfer attends in, once it is planned: which wrapper attends to which tokens, and how wrappers see our KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.flashinfer.kinds import Kinds
from specsplit.model.attention.flashinfer.plan import PagedRows
from specsplit.model.attention.flashinfer.sinks import with_sinks
from specsplit.model.attention.flashinfer.workspace import WORKSPACES, Heads, processors
from specsplit.model.attention.interface import Place, tokens_first
from specsplit.model.attention.softmax import SINKS
from specsplit.model.pages.buckets import Buckets
from specsplit.model.pages.geometry import Layer
from specsplit.model.pages.kv import KVCache


class Library(Protocol):
    """The parts of the flashinfer package that are used."""

    @property
    def BatchPrefillWithPagedKVCacheWrapper(self) -> Any: ...  # noqa: N802

    @property
    def BatchMLAPagedAttentionWrapper(self) -> Any: ...  # noqa: N802

    @property
    def merge_state_in_place(self) -> Any: ...


class PagedKV:
    """A KV cache as paged wrappers of the package take it: the keys of a layer are of the shape of its values, or hold them."""

    def __init__(self, kv: KVCache, page_size: int) -> None:
        self.kinds: Final = Kinds(kv.geometry)
        self.dtype: Final = kv.dtype
        self.page_size: Final = page_size
        self._kv: Final = kv
        self._layers: Final = [
            tuple(plane.unflatten(0, (-1, page_size)) for plane in kv.planes(number)) if kind >= 0 else ()
            for number, kind in enumerate(self.kinds.of_layer)
        ]
        """Keys and values of every layer that attends, [pages, page_size, kv_heads, width] each."""
        self.device: Final = kv.device
        self.num_pages: Final = kv.num_slots // page_size

    def workspace(self, buckets: Buckets | None = None) -> Tensor:
        """Memory for the kernels of wrappers in graph mode for these buckets, or of eager wrappers if there are none. Raises LoadError."""
        count = processors(self.device)
        heads = {
            # Over latents heads are further queries of one tile of 64, and partial sums are of 16 bits (`MLAPlan` of scheduler.cuh).
            Heads(1, 1, kind.value_width, count)
            if kind.values_in_keys
            else Heads(kind.num_heads, kind.kv_heads, kind.key_width, count)
            for kind in self.kinds.each
        }
        return max((WORKSPACES.of(self.device, each, buckets) for each in heads), key=len)

    def latents(self, kind: Layer, page_size: int) -> dict[int, tuple[Tensor, Tensor]]:
        """By number of the layers of a kind that keep latents, these and what is behind them: [pages, page_size, width] each."""
        numbers = [number for number, index in enumerate(self.kinds.of_layer) if index == self.kinds.each.index(kind)]
        keys = {number: self._kv.planes(number)[0][:, 0].unflatten(0, (-1, page_size)) for number in numbers}
        return {number: (each[..., : kind.value_width], each[..., kind.value_width :]) for number, each in keys.items()}

    def plan(self, wrapper: Any, kind: Layer, rows: PagedRows, paged: Paged, causal: bool) -> None:
        """Have a wrapper attend to `rows` in layers of a kind; `paged` holds the same rows as tensors.

        Causally a query sees the last tokens of the kind's window; else a mask says what is in it.
        """
        wrapper.plan(
            paged.qo_indptr,
            paged.kv_indptr,
            paged.indices,
            paged.last_page_len,
            kind.num_heads,
            kind.kv_heads,
            kind.key_width,
            self.page_size,
            packed_custom_mask=paged.mask,
            causal=causal,
            sm_scale=1.0,  # every layer gives its own in `run`
            window_left=(kind.span.window or 0) - 1 if causal else -1,  # tokens before a query's own; -1: all
            logits_soft_cap=kind.softcap,
            q_data_type=self.dtype,
            kv_data_type=self._kv.stored,
            max_token_per_sequence=int(np.diff(rows.qo_indptr).max()),
            seq_lens=paged.lengths,
        )

    def run(self, wrapper: Any, layer: int, query: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        """Attend with query [T, H, D] -> [T, H, D], and the logarithm (base 2) of the sum of its weights, float32 [T, H]."""
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return wrapper.run(query, self._layers[layer], q_scale=scale, out=out, return_lse=True)


class Paged(NamedTuple):
    """`PagedRows` as tensors. What a plan is made from is on the host, in pinned memory; indices and mask may be on the device."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    last_page_len: Tensor
    lengths: Tensor
    indices: Tensor
    mask: Tensor | None


class Part(Protocol):
    """A wrapper that was told what to attend to, for all layers."""

    def run(self, layer: int, query: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        """Attend with query [T, H, D] -> [T, H, D], and log2 of the sum of its weights, float32 [T, H]; see `PagedKV.run`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PlannedGroup:
    """Tokens that are attended to in the same way."""

    tokens: Tensor | slice
    """Index into the new tokens of the batch."""
    seen: Part
    prefix: Part | None


@dataclass(frozen=True, slots=True, eq=False)
class FlashInferForward:
    """One planned forward (a ForwardBatch)."""

    kv: KVCache
    library: Library
    kinds: Kinds
    write_slots: tuple[Tensor, Tensor]
    """[T] of layers that see all tokens, and of those that see a window."""
    groups: Sequence[Sequence[PlannedGroup]]
    """By kind of layers: all new tokens of the batch."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        self.kv.write(layer, self._slots(layer), tokens_first(key), tokens_first(value))
        sinks = extras[SINKS] if self.kv.geometry.layers[layer].sinks else None
        return self._attend_all(layer, tokens_first(query), scaling, sinks)

    def place(self, layer: int, shape: tuple[int, int]) -> Place | None:
        if self.kv.geometry.layers[layer].sinks or not self.kv.takes(layer, shape):
            return None
        return Place(*self.kv.planes(layer), self._slots(layer))

    def attend_stored(self, layer: int, query: Tensor, scaling: float | None) -> Tensor:
        return self._attend_all(layer, query, scaling, None)

    def _slots(self, layer: int) -> Tensor:
        return self.write_slots[self.kv.in_window[layer]]

    def _attend_all(self, layer: int, query: Tensor, scaling: float | None, sinks: Tensor | None) -> Tensor:
        groups = self.groups[self.kinds.of_layer[layer]]
        if len(groups) == 1:
            return self._attend(groups[0], layer, query, scaling, sinks).unsqueeze(0)
        width = self.kv.geometry.layers[layer].value_width
        out = torch.empty(*query.shape[:2], width, dtype=query.dtype, device=query.device)
        for group in groups:
            out[group.tokens] = self._attend(group, layer, query[group.tokens], scaling, sinks)
        return out.unsqueeze(0)

    def _attend(
        self, group: PlannedGroup, layer: int, query: Tensor, scaling: float | None, sinks: Tensor | None
    ) -> Tensor:
        out, weight = group.seen.run(layer, query, scaling)
        if group.prefix is not None:
            self.library.merge_state_in_place(out, weight, *group.prefix.run(layer, query, scaling))
        return out if sinks is None else with_sinks(out, weight, sinks)
