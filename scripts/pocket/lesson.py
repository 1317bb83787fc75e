"""What the target makes of a batch of tokens: all that a head learns from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from specsplit.features import LAST


@dataclass(frozen=True)
class Lesson:
    """One batch as the target read it."""

    tokens: Tensor
    """[B, W]"""
    features: Tensor
    """[B, W, F] the hidden states of the layers asked for, side by side."""
    logits: Tensor
    """[B, W, V] after each token."""


@torch.no_grad()
def teach(target: LlamaForCausalLM, tokens: Tensor, layers: tuple[int, ...]) -> Lesson:
    """Let `target` read `tokens` [B, W]; `layers` are numbered as in specsplit.features."""
    behind: dict[int, Tensor] = {}

    def keep_unnormed(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        behind[target.config.num_hidden_layers] = args[0]

    # The last of the hidden states is the one behind the final norm: transformers does not give the one before it.
    hook = target.model.norm.register_forward_pre_hook(keep_unnormed)
    read = target.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    hook.remove()
    behind |= {LAST: read.last_hidden_state, **dict(enumerate(read.hidden_states[:-1]))}
    features = torch.cat([behind[layer] for layer in layers], dim=-1)
    return Lesson(tokens, features, target.lm_head(read.last_hidden_state))
