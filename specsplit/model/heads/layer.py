"""A decoder layer as transformers writes it, outside its model: one layer of any architecture, with the rotary embedding it needs."""

from __future__ import annotations

import copy
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig

from specsplit.errors import LoadError


class Layer(nn.Module):
    """Layer 0 of `config`'s architecture, randomly initialised, called with hidden states and positions.

    Attention keywords (`forward_batch` for our attention, `attention_mask` for transformers' own) go through to the attention
    function; without a mask transformers' own are causal. Raises LoadError for an architecture that is not built of `layers` and
    one `rotary_emb`.
    """

    def __init__(self, config: PretrainedConfig, attn_implementation: str) -> None:
        super().__init__()
        self.config: Final = _one_layer(config)
        model = AutoModel.from_config(self.config, attn_implementation=attn_implementation)
        layers, rotary = getattr(model, "layers", None), getattr(model, "rotary_emb", None)
        if not isinstance(layers, nn.ModuleList) or not isinstance(rotary, nn.Module):
            raise LoadError(
                f"a head of {config.model_type} layers is not supported: expected an architecture with layers and one rotary_emb"
            )
        self.block: nn.Module = layers[0]
        if not isinstance(getattr(self.block, "input_layernorm", None), nn.Module):
            raise LoadError(
                f"a head of {config.model_type} layers is not supported: expected layers with an input_layernorm"
            )
        # Its frequencies are in no checkpoint: they have to be real where the rest may be on the meta device.
        with torch.device("cpu"):
            self.rotary_emb: nn.Module = type(rotary)(self.config)

    def new_norm(self) -> nn.Module:
        """Another norm like the one in front of its attention."""
        return copy.deepcopy(cast("nn.Module", self.block.input_layernorm))

    def forward(
        self, hidden: Tensor, positions: Tensor, *, attention_mask: Tensor | None = None, **attention: Any
    ) -> Tensor:
        """hidden [B, T, in], positions [B, T] -> [B, T, hidden_size]"""
        return self.block(
            hidden,
            attention_mask=attention_mask,
            position_ids=positions,
            position_embeddings=self.rotary_emb(hidden, positions),
            use_cache=False,
            **attention,
        )


def _one_layer(config: PretrainedConfig) -> PretrainedConfig:
    """Copy a config, with one layer and next to no vocabulary."""
    single = copy.deepcopy(config)
    single.num_hidden_layers = 1
    single.vocab_size = 1
    single.pad_token_id = None
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds:  # a layer behind the target's own attends to everything, unless they are all of one kind
        single.layer_types = [kinds.pop() if len(kinds) == 1 else "full_attention"]
    return single
