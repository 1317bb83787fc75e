"""Attention of Llama and its descendants around our own: one product, and one kernel that rotates and stores.

T   tokens      H, K   query heads, KV heads      D   width of a head
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from specsplit.model.attention.interface import ForwardBatch, Place, StoringForward
from specsplit.model.layers.gpu.linear import JoinedLinear
from specsplit.model.layers.gpu.norm import FusedNorm
from specsplit.model.layers.kernels.elementwise import HeadNorms, rotate
from specsplit.model.layers.parts import AttentionParts, JoinedAttention


class FusedAttention(JoinedAttention):
    """Keys and values go straight to their place in the KV, where the forward says it."""

    @classmethod
    def like(cls, module: Any) -> FusedAttention | None:
        """What may stand for a module that is built of the same parts; None: this one is not. Whether it does the same is not looked at."""
        parts = AttentionParts.of(module)
        if parts is None:
            return None
        norms = [_norm(each) for each in parts.norms]
        known = [each for each in norms if each is not None and len(each.weight) == module.head_dim]
        qkv, output = JoinedLinear.like(*parts.projections), JoinedLinear.like(parts.output)
        if qkv is None or output is None or len(known) < len(norms) or len(norms) == 1 or module.head_dim % 2:
            return None
        return cls(parts, qkv, output, known)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        *,
        forward_batch: ForwardBatch,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """[1, T, width], and cos and sin [1, T, D] -> [1, T, width]"""
        tokens, shape = hidden_states.shape[1], (self.heads[1], self.head_width)
        projected = self.qkv(hidden_states)[0]
        storing = forward_batch if isinstance(forward_batch, StoringForward) else None
        place = None if storing is None else storing.place(self.layer_idx, shape)
        if storing is not None and place is not None:
            queries = self._rotated(projected, position_embeddings, place)
            attended = storing.attend_stored(self.layer_idx, queries, self.scaling)
        else:
            place = _apart(projected, shape)
            queries = self._rotated(projected, position_embeddings, place)
            query, key, value = (each.transpose(0, 1).unsqueeze(0) for each in (queries, place.keys, place.values))
            attended = forward_batch.attend(self.layer_idx, query, key, value, self.scaling, {})
        return self.output(attended.reshape(1, tokens, -1)), None

    def _rotated(self, projected: Tensor, position_embeddings: tuple[Tensor, Tensor], place: Place) -> Tensor:
        cos, sin = (each[0].to(projected.dtype).contiguous() for each in position_embeddings)
        if cos.shape[-1] != self.head_width:
            raise ValueError(f"{cos.shape[-1]} of {self.head_width} numbers of a head are rotated, expected all")
        norms = None
        if len(self.norms):
            queries, keys = cast("tuple[FusedNorm, FusedNorm]", tuple(self.norms))
            norms = HeadNorms(queries.weight, keys.weight, queries.epsilon, keys.epsilon)
        return rotate(projected, cos, sin, self.heads, place, norms)


def _norm(module: nn.Module) -> FusedNorm | None:
    return module if isinstance(module, FusedNorm) else FusedNorm.like(module)


def _apart(projected: Tensor, shape: tuple[int, int]) -> Place:
    """A place for keys and values that somebody else stores."""
    keys, values = projected.new_empty(2, len(projected), *shape)
    return Place(keys, values, torch.arange(len(projected), device=projected.device))
