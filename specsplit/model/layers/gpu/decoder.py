"""A whole decoder layer of Llama and its descendants: the norm behind its attention is that of a sum, in one kernel."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn

from specsplit.model.layers.gpu.attention import FusedAttention
from specsplit.model.layers.gpu.mlp import FusedMlp
from specsplit.model.layers.gpu.norm import FusedNorm
from specsplit.model.layers.parts import DecoderParts, take_words


class FusedLayer(nn.Module):
    """y = x + attention(norm(x)), and y + mlp(norm(y))."""

    def __init__(self, first: FusedNorm, attention: FusedAttention, second: FusedNorm, mlp: FusedMlp) -> None:
        super().__init__()
        self.input_layernorm = first
        self.self_attn = attention
        self.post_attention_layernorm = second
        self.mlp = mlp
        self.layer_idx: Final = attention.layer_idx
        self.sizes: Final = (len(first.weight), len(second.weight), *attention.heads, attention.head_width)

    @classmethod
    def like(cls, layer: nn.Module) -> FusedLayer | None:
        """What may stand for a layer whose parts were replaced; None: this one is built otherwise. Whether it does the same is not looked
        at."""
        parts = DecoderParts.of(layer)
        if parts is None or not isinstance(parts.attention, FusedAttention) or not isinstance(parts.mlp, FusedMlp):
            return None
        if not isinstance(parts.first, FusedNorm) or not isinstance(parts.second, FusedNorm):
            return None
        made = cls(parts.first, parts.attention, parts.second, parts.mlp)
        take_words(made, layer)
        return made

    def forward(self, hidden_states: Tensor, **told: Any) -> Tensor:
        """[1, T, W] -> [1, T, W]"""
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **told)
        normed, total = self.post_attention_layernorm.of_sum(hidden_states, attended)
        return total + self.mlp(normed)
