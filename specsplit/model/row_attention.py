"""Attention of one row whose KV lies side by side, in plain torch: most steps of a session that is served alone.

On a CPU such a step costs what its operations cost to start, so the views of KV that layers need are made once for all of them.

    T   new tokens of the row      H, K   query heads, KV heads; G = H / K
    L   tokens that it sees
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specsplit.model.kv import KVCache


class RunForward:
    """One planned forward of such a row (a ForwardBatch). Its KV is read where it is, and must be kept in the type of attention."""

    def __init__(self, kv: KVCache, run: slice, num_tokens: int, bias: Tensor | None) -> None:
        """`run`: the L slots, of which the last T are the new tokens'. `bias` [1, 1, G * T, L] is added to scores; None: all see all."""
        keys, values = kv.data[:, :, run].unbind(1)
        self._bias = bias
        # [1, K, L, D] by layer, and [1, K, T, D] of the new tokens.
        keys, values = (slots.transpose(1, 2).unsqueeze(1) for slots in (keys, values))
        self._keys, self._new_keys = keys.unbind(), keys[..., -num_tokens:, :].unbind()
        self._values, self._new_values = values.unbind(), values[..., -num_tokens:, :].unbind()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        self._new_keys[layer].copy_(key)
        self._new_values[layer].copy_(value)
        keys = self._keys[layer]
        # Heads that share a KV head become further queries of it.
        folded = query.reshape(1, keys.shape[1], -1, query.shape[3])
        out = scaled_dot_product_attention(folded, keys, self._values[layer], attn_mask=self._bias, scale=scaling)
        return out.reshape(query.shape).transpose(1, 2)
