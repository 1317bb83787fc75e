"""Attention of a row that is alone in its forward, in plain torch: every step of a session that is served alone.

On a CPU such a step costs what its operations cost to start, so the views of KV that layers need are made once for all of them.

    T   new tokens of the row      H, K   query heads, KV heads; G = H / K
    L   tokens that it sees
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specsplit.model.pages.kv import KVCache


class RowForward:
    """One planned forward of such a row (a ForwardBatch). Its KV must be kept in the type of attention."""

    def __init__(self, kv: KVCache, slots: slice | Tensor, new: slice, bias: Tensor | None) -> None:
        """`slots`: the L that it sees; those of a slice are read where they are. `new`: the last T of them, of the new tokens.

        `bias` [1, 1, G * T, L] is added to scores; None: all see all.
        """
        self._kv = kv
        self._slots = slots
        self._bias = bias
        self._new_keys, self._new_values = _heads_first(kv, new)  # [1, K, T, D] by layer
        self._seen = _heads_first(kv, slots) if isinstance(slots, slice) else None  # [1, K, L, D]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        self._new_keys[layer].copy_(key)
        self._new_values[layer].copy_(value)
        keys, values = self._read(layer)
        # Heads that share a KV head become further queries of it.
        folded = query.reshape(1, keys.shape[1], -1, query.shape[3])
        out = scaled_dot_product_attention(folded, keys, values, attn_mask=self._bias, scale=scaling)
        return out.reshape(query.shape).transpose(1, 2)

    def _read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [1, K, L, D] of all that the row sees."""
        if self._seen is not None:
            return self._seen[0][layer], self._seen[1][layer]
        keys, values = self._kv.read(layer, self._slots).transpose(1, 2).unsqueeze(1).unbind()
        return keys, values


def _heads_first(kv: KVCache, run: slice) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Keys, and values, of the n slots of a run: [1, K, n, D] by layer."""
    keys, values = kv.data[:, :, run].transpose(2, 3).unsqueeze(2).unbind(1)
    return keys.unbind(), values.unbind()
