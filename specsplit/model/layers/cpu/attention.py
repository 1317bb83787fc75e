"""Attention of Llama and its descendants around our own: projections, norms of heads, rotary positions.

T   tokens      H, K   query heads, KV heads      D   width of a head
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.layers.cpu.norm import RmsNorm
from specsplit.model.layers.parts import AttentionParts, JoinedAttention


class RotaryAttention(JoinedAttention):
    """One product makes queries, keys and values, and one rotation is applied to queries and keys."""

    @classmethod
    def like(cls, module: Any) -> RotaryAttention | None:
        """What may stand for a module that is built of the same parts; None: this one is not. Whether it does the same is not looked at."""
        parts = AttentionParts.of(module)
        if parts is None:
            return None
        qkv, output = PackedLinear.like(*parts.projections), PackedLinear.like(parts.output)
        if qkv is None or output is None:
            return None
        return cls(parts, qkv, output, [RmsNorm.like(each) or each for each in parts.norms])

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        *,
        forward_batch: ForwardBatch,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """[1, T, width], and cos and sin [1, T, D] -> [1, T, width]"""
        tokens, (queries, keys) = hidden_states.shape[1], self.heads
        projected = self.qkv(hidden_states).view(tokens, -1, self.head_width)  # [T, H + 2 K, D]
        rotated = _rotated(self._normed(projected[:, : queries + keys]), *position_embeddings)
        heads_first = rotated.transpose(0, 1).unsqueeze(0)
        attended = forward_batch.attend(
            self.layer_idx,
            heads_first[:, :queries],
            heads_first[:, queries:],
            projected[:, queries + keys :].transpose(0, 1).unsqueeze(0),
            self.scaling,
            {},
        )
        return self.output(attended.reshape(1, tokens, -1)), None

    def _normed(self, heads: Tensor) -> Tensor:
        """[T, H + K, D] -> the same."""
        if not len(self.norms):
            return heads
        split = heads.split(self.heads, dim=1)
        return torch.cat([norm(part) for norm, part in zip(self.norms, split, strict=True)], dim=1)


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin (arXiv 2104.09864), for x [T, heads, D] and cos and sin [1, T, D] -> [T, heads, D]"""
    cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
    half = heads.shape[-1] // 2
    out = heads * cos
    out[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return out
