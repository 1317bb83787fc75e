"""Attention of a row that is alone in its forward, in plain torch: every step of a session that is served alone.

On a CPU such a step costs what its operations cost to start, so the views of KV that layers need are made once for all of them.

    T   new tokens of the row      H, K   query heads, KV heads; G = H / K
    L   tokens that it sees
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from specsplit.model.attention.interface import tokens_first
from specsplit.model.attention.pieces import Bias, attend_by
from specsplit.model.pages.kv import KVCache


class RowView(NamedTuple):
    """What the layers of one pattern see of a row."""

    slots: slice | Tensor
    """The L that it sees."""
    bias: Bias
    """[1, 1, G * T, L] is added to scores; the pieces of a chunk that is cut; None: all see all."""


class RowForward:
    """One planned forward of such a row (a ForwardBatch). Its KV must be kept in the type of attention."""

    def __init__(self, kv: KVCache, views: Sequence[RowView], new: slice, in_window: slice | Tensor) -> None:
        """views: by pattern; slots of a slice are read where they are.

        new: the last T slots, of the new tokens; in_window: those of layers that see a window, which need not be a run.
        """
        self._kv = kv
        self._layers = kv.geometry.layers
        self._pattern_of = kv.geometry.pattern_of
        self._views = views
        self._in_window = in_window
        self._new_keys, self._new_values = kv.heads_first(new)  # [1, K, T, D] by layer
        self._seen = [kv.heads_first(slots) if isinstance(slots, slice) else None for slots, _ in views]  # [1, K, L, D]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        if self._kv.in_window[layer]:
            self._kv.write(layer, self._in_window, tokens_first(key), tokens_first(value))
        else:
            self._new_keys[layer].copy_(key)
            if not self._layers[layer].values_in_keys:
                self._new_values[layer].copy_(value)
        pattern = self._pattern_of[layer]
        keys, values = self._read(layer, pattern)
        folded = query.reshape(1, keys.shape[1], -1, query.shape[3])
        out = attend_by(self._layers[layer], folded, keys, values, self._views[pattern].bias, scaling, extras)
        return out.reshape(1, query.shape[1], -1, values.shape[3]).transpose(1, 2).contiguous()

    def _read(self, layer: int, pattern: int) -> tuple[Tensor, Tensor]:
        """Keys and values [1, K, L, D] of all that the row sees."""
        seen = self._seen[pattern]
        if seen is not None:
            return seen[0][layer], seen[1][layer]
        keys, values = self._kv.read(layer, self._views[pattern].slots)
        return keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
