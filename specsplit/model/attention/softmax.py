"""Attention of queries over gathered keys and values, as one layer's description has it.

B   rows       H, K   query heads, KV heads; G = H / K
Q   queries of a row                            L   keys that a row lists
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specsplit.model.pages.geometry import Layer

SINKS: Final = "s_aux"
"""How architectures tell their attention of its sinks: [H]."""


def attend(
    layer: Layer,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    scaling: float | None,
    extras: dict[str, Any],
) -> Tensor:
    """query [B, K, G * Q, key width], heads before queries, over keys and values [B, K, L, width] -> [B, K, G * Q, value width].

    Heads that share a KV head are further queries of it: no copy of the KV per head, and every SDPA kernel takes it. `bias`, broadcast
    to [B, K, G * Q, L], is added to scores; None: all see all. `scaling` None means key width ** -0.5; `extras` hold the sinks.
    """
    if layer.plain:
        if (
            layer.values_in_keys
        ):  # a CPU has a fused kernel for values as wide as keys: what is too much is cut off behind
            out = scaled_dot_product_attention(query, keys, keys, attn_mask=bias, scale=scaling)
            return out[..., : layer.value_width]
        return scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scaling)
    scores = query @ keys.transpose(2, 3) * (layer.key_width**-0.5 if scaling is None else scaling)
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if bias is not None:
        scores = scores + bias
    if not layer.sinks:
        return scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype) @ values
    sinks = extras[SINKS].to(scores.dtype).reshape(1, layer.kv_heads, -1, 1, 1)
    by_head = scores.unflatten(2, (sinks.shape[2], -1))
    with_sinks = torch.cat((by_head, sinks.expand(*by_head.shape[:-1], 1)), dim=-1)
    weights = with_sinks.softmax(dim=-1, dtype=torch.float32)[..., :-1].flatten(2, 3)
    return weights.to(values.dtype) @ values
