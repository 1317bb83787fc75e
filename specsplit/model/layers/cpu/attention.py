"""Attention of Llama and its descendants around our own: projections, norms of heads, rotary positions.

T   tokens      H, K   query heads, KV heads      D   width of a head
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.layers.cpu.linear import PackedLinear, has_own_numbers
from specsplit.model.layers.cpu.norm import RmsNorm

PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj")
OUTPUT: Final = "o_proj"
NORMS: Final = ("q_norm", "k_norm")


class AttentionLayer(Protocol):
    """What transformers' attention modules have besides their children."""

    layer_idx: int
    head_dim: int
    scaling: float


class RotaryAttention(nn.Module):
    """One product makes queries, keys and values, and one rotation is applied to queries and keys."""

    def __init__(
        self,
        like: AttentionLayer,
        qkv: PackedLinear,
        output: PackedLinear,
        heads: Sequence[int],
        norms: Sequence[nn.Module],
    ) -> None:
        """heads: H and K. norms: of the heads of queries, and of keys; or none."""
        super().__init__()
        self.layer_idx: Final = like.layer_idx
        self.qkv = qkv
        self.output = output
        self.norms = nn.ModuleList(norms)
        self.heads: Final = tuple(heads)
        self.head_width: Final = like.head_dim
        self.scaling: Final = like.scaling

    @classmethod
    def like(cls, module: Any) -> RotaryAttention | None:
        """What may stand for a module that is built of the same parts; None: this one is not. Whether it does the same is not looked at."""
        parts = attention_parts(module)
        if parts is None:
            return None
        norms = [RmsNorm.like(parts[name]) or parts[name] for name in NORMS if name in parts]
        qkv, output = PackedLinear.like(*(parts[name] for name in PROJECTIONS)), PackedLinear.like(parts[OUTPUT])
        if qkv is None or output is None:
            return None
        return cls(module, qkv, output, heads_of(module), norms)

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


def attention_parts(module: Any) -> dict[str, Any] | None:
    """The children of a module that has those of Llama's attention, with norms of heads or none; None: it has others, or more to it."""
    parts = dict[str, Any](module.named_children())
    if not {*PROJECTIONS, OUTPUT} <= set(parts) <= {*PROJECTIONS, OUTPUT, *NORMS}:
        return None
    if not all(hasattr(module, name) for name in AttentionLayer.__annotations__):
        return None
    return None if has_own_numbers(module) else parts  # such as sinks, of which its attention is told


def heads_of(module: Any) -> tuple[int, ...]:
    """H and K of such a module."""
    return tuple(getattr(module, name).out_features // module.head_dim for name in PROJECTIONS[:2])


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin (arXiv 2104.09864), for x [T, heads, D] and cos and sin [1, T, D] -> [T, heads, D]"""
    cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
    half = heads.shape[-1] // 2
    out = heads * cos
    out[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return out
