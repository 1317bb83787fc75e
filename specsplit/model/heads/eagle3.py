"""EAGLE-3 (arXiv 2503.01840): one decoder layer on the embedding of a token and a fusion of several hidden states before it.

Published by its authors as `cnets.py` (github.com/SafeAILab/EAGLE).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.features import FeatureFormat, FeatureNeed
from specsplit.model.attention.interface import NAME
from specsplit.model.heads.head import Head
from specsplit.model.heads.layer import Layer
from specsplit.model.heads.shape import HeadShape
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.values import DrafterKind

_PARTS: Final = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
_PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj")


class Eagle3Head(Head):
    """state' = layer(embedding, state), logits = lm_head(norm(state')); a feature is fused by fc.

    config: of the layer, as wide as the head. layers: see FeatureNeed. draft_vocab_size: tokens that it proposes; None for all.
    norm_before_residual: the residual is the normed state. own_lm_head: False takes the target's.
    """

    d2t: Tensor | None
    """[draft V] int64: target id less draft id."""
    t2d: Tensor | None
    """[V] bool: the tokens that it proposes."""

    def __init__(
        self,
        config: PretrainedConfig,
        target: TargetEmbeddings,
        *,
        layers: tuple[int, ...],
        draft_vocab_size: int | None = None,
        norm_before_residual: bool = False,
        own_lm_head: bool = True,
        bias: bool = False,
        model: str = "",
        attn_implementation: str = NAME,
    ) -> None:
        width, embedding_width = config.hidden_size, target.embeddings.shape[1]
        if embedding_width != width:
            raise LoadError(
                f"an EAGLE-3 head of width {width} on embeddings of width {embedding_width}: expected embeddings of its own (embed_tokens)"
            )
        need = FeatureNeed(layers, target.hidden_size)
        super().__init__(
            HeadShape(DrafterKind.EAGLE3, need, width, 1, True, target.max_context, target.vocabulary, model),
            target,
            width,
        )
        self.norm_before_residual: Final = norm_before_residual
        self.fc = nn.Linear(need.layout(target.hidden_size, FeatureFormat.FLOAT32).width, width, bias=bias)
        self.layer = Layer(config, attn_implementation)
        self.norm = self.layer.new_norm()
        self.layer.block = _Block(self.layer, width, norm_before_residual)
        draft_size = draft_vocab_size or target.vocabulary.size
        self.lm_head = nn.Linear(width, draft_size, bias=False) if own_lm_head else None
        self.register_buffer("d2t", None)
        self.register_buffer("t2d", None)
        if draft_vocab_size is not None:
            self.set_draft_tokens(torch.arange(draft_vocab_size))

    def set_draft_tokens(self, target_ids: Tensor) -> None:
        """Set the target's ids [draft V] of the head's tokens, each once."""
        drafted = torch.arange(len(target_ids), device=target_ids.device)
        chosen = torch.zeros(self.shape.vocabulary.size, dtype=torch.bool, device=target_ids.device)
        self.d2t = target_ids - drafted
        self.t2d = chosen.index_fill(0, target_ids, True)
        self.target_ids = target_ids

    @property
    def config(self) -> PretrainedConfig:
        return self.layer.config

    @property
    def layers(self) -> Sequence[nn.Module]:
        return [self.layer.block]

    def draft_logits(self, step: int, hidden: Tensor) -> Tensor:
        normed = self.norm(hidden)
        return self.target.logits(normed) if self.lm_head is None else self.lm_head(normed)

    def _fuse(self, features: Tensor, projected: bool) -> Tensor:
        """The projection is fc without its bias."""
        if not projected:
            return self.fc(features)
        return features if self.fc.bias is None else features + self.fc.bias

    def _advance(
        self, step: int, tokens: Tensor, states: Tensor, positions: Tensor, **attention: Any
    ) -> tuple[Tensor, Tensor]:
        both = torch.cat([self.target.embed(tokens), states], dim=-1)
        hidden = self.layer(both, positions, **attention)
        return hidden, hidden


class _Block(nn.Module):
    """A decoder layer that reads [embedding, state] side by side, and adds to the state alone."""

    def __init__(self, layer: Layer, width: int, norm_before_residual: bool) -> None:
        super().__init__()
        parts = dict(layer.block.named_children())
        if set(parts) != set(_PARTS) or not all(hasattr(parts["self_attn"], name) for name in _PROJECTIONS):
            raise LoadError(
                f"{type(layer.block).__name__} cannot be an EAGLE-3 layer: expected {', '.join(_PARTS)}, with {', '.join(_PROJECTIONS)}"
            )
        self.norm_before_residual: Final = norm_before_residual
        self.input_layernorm: nn.Module = parts["input_layernorm"]
        self.hidden_norm: nn.Module = layer.new_norm()
        self.self_attn: nn.Module = parts["self_attn"]
        self.post_attention_layernorm: nn.Module = parts["post_attention_layernorm"]
        self.mlp: nn.Module = parts["mlp"]
        for name in _PROJECTIONS:
            narrow: nn.Linear = getattr(self.self_attn, name)
            wide = nn.Linear(2 * width, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)

    def forward(self, both: Tensor, **attention: Any) -> Tensor:
        embeddings, state = both.chunk(2, dim=-1)
        normed = self.hidden_norm(state)
        residual = normed if self.norm_before_residual else state
        attended, _ = self.self_attn(torch.cat([self.input_layernorm(embeddings), normed], dim=-1), **attention)
        hidden = residual + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
