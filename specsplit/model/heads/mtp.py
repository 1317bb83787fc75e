"""Multi-token prediction (arXiv 2412.19437, section 2.2): a decoder layer of its own for every token ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specsplit.features import LAST, FeatureNeed
from specsplit.model.attention.interface import NAME
from specsplit.model.heads.head import Head
from specsplit.model.heads.layer import Layer
from specsplit.model.heads.shape import HeadShape
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.mtp.families import MIMO
from specsplit.mtp.family import MtpFormula
from specsplit.values import DrafterKind


class MtpHead(Head):
    """state' = layer_k(proj_k([norm(embedding), norm(state)])), logits by the target's LM head behind the step's norm.

    configs: of the layers, one a step; as wide as the target. formula: what the layers' family does in its own way. recurrent: the one
    layer also reads its own states (kind eagle), behind its norm.
    """

    def __init__(
        self,
        configs: Sequence[PretrainedConfig],
        target: TargetEmbeddings,
        *,
        formula: MtpFormula = MIMO.formula,
        recurrent: bool = False,
        model: str = "",
        attn_implementation: str = NAME,
    ) -> None:
        num_steps = len(configs)
        if num_steps < 1 or (recurrent and num_steps != 1):
            raise ValueError(f"there are {num_steps} configs, expected {'1' if recurrent else 'at least 1'}")
        width = target.hidden_size
        kind = DrafterKind.EAGLE if recurrent else DrafterKind.MULTI_LAYER_EAGLE
        need = FeatureNeed((LAST if formula.normed_features else target.num_layers,), width)
        super().__init__(
            HeadShape(kind, need, target.max_context, target.vocabulary, model, width, num_steps, recurrent),
            target,
            width,
        )
        self.formula: Final = replace(formula, normed_states=formula.normed_states or recurrent)
        vocab_size = target.vocabulary.size
        self.steps = nn.ModuleList(_Step(each, formula, vocab_size, attn_implementation) for each in configs)

    @property
    def config(self) -> PretrainedConfig:
        return self._step(0).layer.config

    @property
    def layers(self) -> Sequence[nn.Module]:
        return [self._step(step).layer.block for step in range(self.shape.num_steps)]

    def draft_logits(self, step: int, hidden: Tensor) -> Tensor:
        part = self._step(step)
        normed = hidden if self.formula.normed_states else part.final_norm(hidden)
        return self.target.logits(normed) if part.lm_head is None else part.lm_head(normed)

    def _advance(
        self, step: int, tokens: Tensor, states: Tensor, positions: Tensor, **attention: Any
    ) -> tuple[Tensor, Tensor]:
        part = self._step(step)
        embedded = self.target.embed(tokens)
        if self.formula.first_blank:
            embedded = embedded.masked_fill(positions.unsqueeze(-1) == 0, 0)
        pair = [part.hidden_norm(states), part.token_norm(embedded)]
        joined = torch.cat(pair[::-1] if self.formula.embedding_first else pair, dim=-1)
        hidden = part.layer(part.proj(joined), positions, **attention)
        if self.formula.normed_states:
            hidden = part.final_norm(hidden)
        return hidden, hidden

    def _step(self, step: int) -> _Step:
        part = self.steps[step]
        assert isinstance(part, _Step)
        return part


class _Step(nn.Module):
    """The modules of one step."""

    def __init__(
        self, config: PretrainedConfig, formula: MtpFormula, vocab_size: int, attn_implementation: str
    ) -> None:
        super().__init__()
        width = config.hidden_size
        self.layer = Layer(config, attn_implementation, norms_behind=True)
        self.token_norm = self.layer.new_norm()
        self.hidden_norm = self.layer.new_norm()
        self.final_norm = self.layer.new_norm() if formula.final_norm else nn.Identity()
        self.proj = nn.Linear(2 * width, width, bias=False)
        self.lm_head = nn.Linear(width, vocab_size, bias=False) if formula.own_lm_head else None
