"""EAGLE (arXiv 2401.15077): one decoder layer on the embedding of a token and the target's last hidden state before it.

Published by its authors as `cnets1.py` (github.com/SafeAILab/EAGLE); EAGLE-2 (arXiv 2406.16858) has the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specsplit.features import LAST, FeatureNeed
from specsplit.model.attention.interface import NAME
from specsplit.model.heads.config import reach_of
from specsplit.model.heads.head import Head
from specsplit.model.heads.layer import Layer
from specsplit.model.heads.shape import HeadShape
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.values import DrafterKind


class EagleHead(Head):
    """state' = layer(fc([embedding, state])), logits by the target's LM head. The layer has no norm in front of its attention.

    config: of the layer; as wide as the target. bias: of fc.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        target: TargetEmbeddings,
        *,
        bias: bool = True,
        model: str = "",
        attn_implementation: str = NAME,
    ) -> None:
        width = target.hidden_size
        need = FeatureNeed((LAST,), width)
        max_context = min(target.max_context, reach_of(config, target.max_context))
        super().__init__(
            HeadShape(DrafterKind.EAGLE, need, max_context, target.vocabulary, model, width, 1, True),
            target,
            width,
        )
        self.fc = nn.Linear(2 * width, width, bias=bias)
        self.layer = Layer(config, attn_implementation)
        self.layer.block.input_layernorm = nn.Identity()

    @property
    def config(self) -> PretrainedConfig:
        return self.layer.config

    @property
    def layers(self) -> Sequence[nn.Module]:
        return [self.layer.block]

    def draft_logits(self, step: int, hidden: Tensor) -> Tensor:
        return self.target.logits(hidden)

    def _advance(
        self, step: int, tokens: Tensor, states: Tensor, positions: Tensor, **attention: Any
    ) -> tuple[Tensor, Tensor]:
        fused = self.fc(torch.cat([self.target.embed(tokens), states], dim=-1))
        hidden = self.layer(fused, positions, **attention)
        return hidden, hidden
