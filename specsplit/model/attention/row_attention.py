"""Attention of a row that is alone in its forward, in plain torch: every step of a session that is served alone.

On a CPU such a step costs what its operations cost to start, so the views of KV that layers need are made once for all of them.

    T   new tokens of the row      H, K   query heads, KV heads; G = H / K
    L   tokens that it sees
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from specsplit.model.attention.softmax import attend
from specsplit.model.pages.kv import KVCache


class RowView(NamedTuple):
    """What the layers of one pattern see of a row."""

    slots: slice | Tensor
    """The L that it sees."""
    bias: Tensor | None
    """[1, 1, G * T, L] is added to scores; None: all see all."""


class RowForward:
    """One planned forward of such a row (a ForwardBatch). Its KV must be kept in the type of attention."""

    def __init__(self, kv: KVCache, views: Sequence[RowView], new: tuple[slice, slice]) -> None:
        """views: by pattern; slots of a slice are read where they are.

        `new`: the last T slots, of the new tokens, in layers that see all tokens and in those that see a window.
        """
        self._kv = kv
        self._layers = kv.geometry.layers
        self._pattern_of = kv.geometry.pattern_of
        self._views = views
        self._in_window = kv.in_window
        whole = kv.heads_first(new[0])  # keys, values [1, K, T, D] by layer
        self._new = whole, whole if new[0] == new[1] else kv.heads_first(new[1])
        self._seen = [kv.heads_first(slots) if isinstance(slots, slice) else None for slots, _ in views]  # [1, K, L, D]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        keys, values = self._new[self._in_window[layer]]
        keys[layer].copy_(key)
        if not self._layers[layer].values_in_keys:
            values[layer].copy_(value)
        pattern = self._pattern_of[layer]
        keys, values = self._read(layer, pattern)
        folded = query.reshape(1, keys.shape[1], -1, query.shape[3])
        out = attend(self._layers[layer], folded, keys, values, self._views[pattern].bias, scaling, extras)
        return out.reshape(1, query.shape[1], -1, values.shape[3]).transpose(1, 2).contiguous()

    def _read(self, layer: int, pattern: int) -> tuple[Tensor, Tensor]:
        """Keys and values [1, K, L, D] of all that the row sees."""
        seen = self._seen[pattern]
        if seen is not None:
            return seen[0][layer], seen[1][layer]
        keys, values = self._kv.read(layer, self._views[pattern].slots)
        return keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
