"""A forward that the kernels attend in, once it is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
from torch import Tensor

from specsplit.model.attention.interface import Place, tokens_first
from specsplit.model.attention.softmax import SINKS
from specsplit.model.attention.triton.kernels import split_kv
from specsplit.model.attention.triton.layout import Shape
from specsplit.model.attention.triton.tiles import Tile, head_blocks, parts_of, pieces
from specsplit.model.pages.geometry import NO_ATTENTION, Layer
from specsplit.model.pages.kv import KVCache
from specsplit.sampling.kernels import launching_on

_ATTEND: Final[Any] = split_kv.attend
_MERGE: Final[Any] = split_kv.merge
"""The kernels without types: triton has none for a launch."""
_FUSED: Final[dict[str, Any]] = {"enable_fp_fusion": True}
"""How kernels are launched: sums of products need not be rounded in between."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """What the rows of a forward are, on the device."""

    words: Tensor
    """int32, see `specsplit.model.attention.triton.layout`."""
    tables: Tensor
    """int32 [tables, pages], with strides as they are"""
    windows: Tensor | None
    """int64 [pages] the window page of each; None: layers that see a window have no pages of their own."""
    shape: Shape
    longest: int
    """Tokens that a row sees at most."""
    gathered: bool
    """Whether `tables` has the table of each row, in their order, in the place of all."""
    page_size: int


class LayerKernels:
    """The kernels as each layer of a KV cache takes them."""

    def __init__(self, kv: KVCache, processors: int, share: int) -> None:
        """`processors`: of the device; share: see `parts_of`."""
        self._kv: Final = kv
        self._processors: Final = processors
        self._share: Final = share
        self._planes: Final = [
            None if layer == NO_ATTENTION else kv.planes(number) for number, layer in enumerate(kv.geometry.layers)
        ]
        self.kinds: Final = tuple(dict.fromkeys(layer for layer in kv.geometry.layers if layer != NO_ATTENTION))
        """Layers that differ, each once."""
        self.spans: Final = tuple(dict.fromkeys(kind.span for kind in self.kinds))

    def shape(self, tokens: int, rows: int) -> Shape:
        """The shape of a layout of so many tokens in up to so many rows."""
        return Shape.of(self._tiles(tokens, rows), rows, tokens, self.spans)

    def even_shape(self, tokens: int, rows: int) -> Shape:
        """The shape of a layout of so many tokens, as many in each of so many rows."""
        return Shape.even(self._tiles(tokens, rows), rows, tokens, self.spans)

    def attend(
        self,
        number: int,
        planned: Planned,
        query: Tensor,
        scaling: float | None,
        sinks: Tensor | None,
        count: int | None = None,
    ) -> Tensor:
        """Attend in layer `number` with query [T, H, key width] -> [T, H, value width], contiguous.

        sinks: [H] where it has some. count: parts that what is seen is cut into; None: as many as are good for the device.
        """
        layer = self._kv.geometry.layers[number]
        count = self._parts(layer, planned) if count is None else count
        query = query if query.stride(2) == 1 else query.contiguous()
        out = query.new_empty(*query.shape[:2], layer.value_width)
        sinks = out if sinks is None else sinks
        with launching_on(out.device):
            if count == 1:
                self._launch(number, 1, planned, query, scaling, sinks, (out, out, out))
            else:
                parts = torch.empty(*out.shape[:2], count, layer.value_width, device=out.device)
                weights = torch.empty(*out.shape[:2], count, device=out.device)
                self._launch(number, count, planned, query, scaling, sinks, (out, parts, weights))
                width, block = layer.value_width, triton.next_power_of_2(layer.value_width)
                _MERGE[out.shape[:2]](out, parts, weights, sinks, count, width, layer.sinks, block, **_FUSED)
        return out

    def _parts(self, layer: Layer, planned: Planned) -> int:
        shape, seen = planned.shape, planned.longest
        tile = self._tile(layer, shape.tokens, shape.rows)
        if layer.span.size is not None:
            seen = min(seen, layer.span.size + shape.tokens)
        programs = shape.tiles[tile.tokens] * head_blocks(layer, tile)
        return parts_of(programs, self._processors, seen, self._share)

    def _launch(
        self,
        number: int,
        count: int,
        planned: Planned,
        query: Tensor,
        scaling: float | None,
        sinks: Tensor,
        outs: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        layer, planes = self._kv.geometry.layers[number], self._planes[number]
        shape, windows = planned.shape, planned.windows
        tile = self._tile(layer, shape.tokens, shape.rows)
        assert planes is not None, "a layer that attends has keys and values"
        keys, values = planes
        windowed = windows is not None and self._kv.in_window[number]
        softcap = layer.softcap
        _ATTEND[shape.tiles[tile.tokens], head_blocks(layer, tile), count](
            *outs,
            query,
            query.stride(0),
            query.stride(1),
            keys,
            values,
            keys.stride(0),
            values.stride(0),
            planned.tables,
            planned.tables.stride(0),
            windows if windowed else planned.tables,
            planned.words,
            shape.tiles_at(tile.tokens),
            shape.rows_at,
            shape.low_at + shape.spans.index(layer.span) * shape.tokens,
            shape.spans.index(layer.span),
            sinks,
            layer.key_width**-0.5 if scaling is None else scaling,
            1.0 if softcap is None else softcap,
            PAGE=planned.page_size,
            SPLIT=count > 1,
            WINDOWED=windowed,
            GATHERED=planned.gathered,
            **constants(layer, tile),
            num_warps=tile.warps,
            **_FUSED,
        )

    def _tiles(self, tokens: int, rows: int) -> list[int]:
        """Tokens of the tiles that there are, ascending."""
        return sorted({self._tile(kind, tokens, rows).tokens for kind in self.kinds})

    def _tile(self, layer: Layer, tokens: int, rows: int) -> Tile:
        return Tile.of(layer, tokens, rows, self._kv.dtype)


def constants(layer: Layer, tile: Tile) -> dict[str, Any]:
    """What the kernel is compiled for that layers like this and tiles like this have in common."""
    front, rest = pieces(layer)
    return {
        "HEADS": layer.num_heads,
        "GROUP": layer.num_heads // layer.kv_heads,
        "KEY_WIDTH": layer.key_width,
        "VALUE_WIDTH": layer.value_width,
        "VALUE_HEAD": layer.key_width if layer.values_in_keys else layer.value_width,
        "BOUNDED": layer.span.size is not None,
        "SOFTCAP": layer.softcap is not None,
        "SINKS": layer.sinks,
        "SHARED": layer.values_in_keys and layer.value_width == front,
        "GROUP_TILE": tile.group,
        "BLOCK_Q": tile.tokens,
        "BLOCK_M": tile.lines,
        "BLOCK_N": tile.keys,
        "FRONT": front,
        "REST": rest,
        "BLOCK_V": max(16, triton.next_power_of_2(layer.value_width)),
        "STAGES": tile.stages,
    }


@dataclass(frozen=True, slots=True, eq=False)
class TritonForward:
    """One planned forward (a ForwardBatch)."""

    kv: KVCache
    kernels: LayerKernels
    write_slots: Sequence[Tensor]
    """[T] of layers that see all tokens, and of those that see a window."""
    planned: Planned

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        self.kv.write(layer, self._slots(layer), tokens_first(key), tokens_first(value))
        sinks = extras[SINKS] if self.kv.geometry.layers[layer].sinks else None
        return self.kernels.attend(layer, self.planned, tokens_first(query), scaling, sinks).unsqueeze(0)

    def place(self, layer: int, shape: tuple[int, int]) -> Place | None:
        if self.kv.geometry.layers[layer].sinks or not self.kv.takes(layer, shape):
            return None
        return Place(*self.kv.planes(layer), self._slots(layer))

    def attend_stored(self, layer: int, query: Tensor, scaling: float | None) -> Tensor:
        return self.kernels.attend(layer, self.planned, query, scaling, None).unsqueeze(0)

    def _slots(self, layer: int) -> Tensor:
        return self.write_slots[self.kv.in_window[layer]]
