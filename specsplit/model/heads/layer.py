"""Decoder layers as transformers writes them, outside their model: the first of any architecture, with the rotary embedding they need."""

from __future__ import annotations

import copy
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig

from specsplit.errors import LoadError


class Layer(nn.Module):
    """Layer 0 of `config`'s architecture, randomly initialised, called with hidden states and positions; with `count`, so many in a row.

    Attention keywords (`forward_batch` for our attention, `attention_mask` for transformers' own) go through to the attention
    function; without a mask transformers' own are causal. Raises LoadError for an architecture that is not built of `layers` and
    one `rotary_emb`.
    """

    def __init__(self, config: PretrainedConfig, attn_implementation: str, count: int = 1) -> None:
        super().__init__()
        self.config: Final = _of_layers(config, count)
        model = AutoModel.from_config(self.config, attn_implementation=attn_implementation)
        layers, rotary = getattr(model, "layers", None), getattr(model, "rotary_emb", None)
        if not isinstance(layers, nn.ModuleList) or not isinstance(rotary, nn.Module):
            raise LoadError(
                f"a head of {config.model_type} layers is not supported: expected an architecture with layers and one rotary_emb"
            )
        self.block: nn.Module = layers[0]
        self.further = nn.ModuleList(list(layers)[1:])
        """The layers behind the first."""
        if not isinstance(getattr(self.block, "input_layernorm", None), nn.Module):
            raise LoadError(
                f"a head of {config.model_type} layers is not supported: expected layers with an input_layernorm"
            )
        # Its frequencies are in no checkpoint: they have to be real where the rest may be on the meta device.
        with torch.device("cpu"):
            self.rotary_emb: nn.Module = type(rotary)(self.config)

    def new_norm(self, size: int | None = None) -> nn.Module:
        """Another norm like the one in front of its attention, of `size` numbers where it is not to be as wide as that."""
        norm = copy.deepcopy(cast("nn.Module", self.block.input_layernorm))
        if size is not None:
            weight = norm.get_parameter("weight")
            norm.weight = nn.Parameter(weight.detach()[:1].repeat(size))
        return norm

    def forward(
        self, hidden: Tensor, positions: Tensor, *, attention_mask: Tensor | None = None, **attention: Any
    ) -> Tensor:
        """hidden [B, T, in], positions [B, T] -> [B, T, hidden_size]"""
        rotated = self.rotary_emb(hidden, positions)
        for block in (self.block, *self.further):
            hidden = block(
                hidden,
                attention_mask=attention_mask,
                position_ids=positions,
                position_embeddings=rotated,
                use_cache=False,
                **attention,
            )
        return hidden


def _of_layers(config: PretrainedConfig, count: int) -> PretrainedConfig:
    """Copy a config, with `count` layers and next to no vocabulary."""
    few = copy.deepcopy(config)
    few.num_hidden_layers = count
    few.vocab_size = 1
    few.pad_token_id = None
    kinds: list[str] = list(getattr(config, "layer_types", None) or ())
    if kinds and len(kinds) != count:  # layers behind the target's own attend to everything, unless all are of one kind
        few.layer_types = [kinds[0] if len(set(kinds)) == 1 else "full_attention"] * count
    return few
