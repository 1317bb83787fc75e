"""EAGLE-3 (arXiv 2503.01840): decoder layers, one as a rule, on the embedding of a token and a fusion of several hidden states before it.

Published by its authors as `cnets.py` (github.com/SafeAILab/EAGLE). P-EAGLE, as vLLM's speculators and vLLM itself have it, is the same
network trained to draft several tokens at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.features import FeatureNeed
from specsplit.model.attention.interface import NAME
from specsplit.model.heads.config import reach_of
from specsplit.model.heads.eagle3_variant import Eagle3Variant
from specsplit.model.heads.fusion import Fusion
from specsplit.model.heads.head import Head
from specsplit.model.heads.layer import Layer
from specsplit.model.heads.shape import HeadShape
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.values import DrafterKind

_PARTS: Final = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
_PROJECTIONS: Final = (
    ("q_proj", "k_proj", "v_proj"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("q_proj", "kv_a_proj_with_mqa"),
)
"""What reads the inputs of an attention: of heads, or of latents whose queries are made of one or not."""


class Eagle3Head(Head):
    """state' = layers(embedding, state), logits = lm_head(norm(state')); a feature is fused by `Fusion`.

    config: of the decoder layers, as wide as the head; num_blocks: how many. layers: see FeatureNeed. draft_vocab_size: tokens that it
    proposes; None for all. own_lm_head: False takes the target's. bias: of fc.

    P-EAGLE: rows of tokens without a feature see the embedding and the state of the mask, whatever their token and their parent are. So the
    state that a token hands on is only the sign for that, in a number behind the state: 1, and 0 behind a fused feature.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        target: TargetEmbeddings,
        *,
        layers: tuple[int, ...],
        num_blocks: int = 1,
        draft_vocab_size: int | None = None,
        variant: Eagle3Variant = Eagle3Variant(),  # noqa: B008 - frozen
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
        state_width = width + (variant.mask_token is not None)
        max_context = min(target.max_context, reach_of(config, target.max_context))
        super().__init__(
            HeadShape(DrafterKind.EAGLE3, need, max_context, target.vocabulary, model, state_width, 1, True),
            target,
            width,
        )
        self.variant: Final = variant
        self.layer = Layer(config, attn_implementation, num_blocks)
        self.fusion = Fusion(len(layers), target.hidden_size, width, variant, self.layer.new_norm, bias=bias)
        self.norm = self.layer.new_norm()
        self.layer.block = _FirstBlock(self.layer, width, variant.norm_before_residual)
        draft_size = draft_vocab_size or target.vocabulary.size
        self.lm_head = nn.Linear(width, draft_size, bias=False) if own_lm_head else None
        if draft_vocab_size is not None:
            self.set_draft_tokens(torch.arange(draft_vocab_size))

    @property
    def config(self) -> PretrainedConfig:
        return self.layer.config

    @property
    def layers(self) -> Sequence[nn.Module]:
        return [self.layer.block, *self.layer.further]

    def layers_of(self, step: int) -> Sequence[nn.Module]:
        return self.layers

    def draft_logits(self, step: int, hidden: Tensor) -> Tensor:
        normed = hidden if self.variant.norm_output else self.norm(hidden)
        logits = self.target.logits(normed) if self.lm_head is None else self.lm_head(normed)
        return logits if self.variant.logit_scale == 1 else logits * self.variant.logit_scale

    def _fuse(self, features: Tensor, projected: bool) -> Tensor:
        """The projection is fc without its bias."""
        fused = self.fusion.of_projected(features) if projected else self.fusion(features)
        return (
            fused if self.variant.mask_token is None else torch.cat([fused, torch.zeros_like(fused[..., :1])], dim=-1)
        )

    def _advance(
        self, step: int, tokens: Tensor, states: Tensor, positions: Tensor, **attention: Any
    ) -> tuple[Tensor, Tensor]:
        embedded = self.target.embed(tokens)
        if self.variant.mask_token is not None:
            embedded, states = self._masked(embedded, states, self.variant.mask_token)
        hidden = self.layer(torch.cat([embedded, states], dim=-1), positions, **attention)
        if self.variant.norm_output:
            hidden = self.norm(hidden)
        if self.variant.mask_token is None:
            return hidden, hidden
        return hidden, torch.ones_like(hidden[..., :1]).expand(*hidden.shape[:-1], self.shape.state_width)

    def _masked(self, embedded: Tensor, states: Tensor, mask_token: int) -> tuple[Tensor, Tensor]:
        """Put the mask in the place of what has no feature: embedded [..., width], states [..., state_width] -> both [..., width]."""
        without, known = states[..., -1:] > 0, states[..., :-1]
        return torch.where(without, self.target.embeddings[mask_token], embedded), torch.where(
            without, self.fusion.mask(), known
        )


def _has(module: nn.Module | None, name: str) -> bool:
    return isinstance(getattr(module, name, None), nn.Linear)


class _FirstBlock(nn.Module):
    """A decoder layer that reads [embedding, state] side by side, and adds to the state alone."""

    def __init__(self, layer: Layer, width: int, norm_before_residual: bool) -> None:
        super().__init__()
        parts = dict(layer.block.named_children())
        attention = parts.get("self_attn")
        widened = next((names for names in _PROJECTIONS if all(map(partial(_has, attention), names))), None)
        if set(parts) != set(_PARTS) or widened is None:
            either = " or ".join(" and ".join(names) for names in _PROJECTIONS)
            raise LoadError(
                f"{type(layer.block).__name__} cannot be an EAGLE-3 layer: expected {', '.join(_PARTS)}, with {either}"
            )
        self.norm_before_residual: Final = norm_before_residual
        self.input_layernorm: nn.Module = parts["input_layernorm"]
        self.hidden_norm: nn.Module = layer.new_norm()
        self.self_attn: nn.Module = parts["self_attn"]
        self.post_attention_layernorm: nn.Module = parts["post_attention_layernorm"]
        self.mlp: nn.Module = parts["mlp"]
        for name in widened:
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
