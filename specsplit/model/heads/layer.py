"""Decoder layers as transformers writes them, outside their model: the first of any architecture, with the rotary embedding they need."""

from __future__ import annotations

import copy
from inspect import signature
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model.heads.blocks import WITHOUT_POSITIONS, blocks_of, decoder, few_layers


class Layer(nn.Module):
    """Layer 0 of `config`'s architecture, randomly initialised, called with hidden states and positions; with `count`, so many in a row.

    Attention keywords (`forward_batch` for our attention, `attention_mask` for transformers' own) go through to the attention
    function; without a mask transformers' own are causal. norms_behind: its norms may stand behind attention and MLP alone. Raises
    LoadError for an architecture that is not built of `layers` and one `rotary_emb`.
    """

    def __init__(
        self, config: PretrainedConfig, attn_implementation: str, count: int = 1, *, norms_behind: bool = False
    ) -> None:
        super().__init__()
        self.config: Final = few_layers(config, count)
        model = decoder(self.config, attn_implementation)
        layers, rotary = blocks_of(model), getattr(model, "rotary_emb", None)
        if not layers or not (isinstance(rotary, nn.Module) or config.model_type in WITHOUT_POSITIONS):
            raise LoadError(
                f"a head of {config.model_type} layers is not supported: expected an architecture with layers and one rotary_emb"
            )
        self.block: nn.Module = layers[0]
        self.further = nn.ModuleList(layers[1:])
        """The layers behind the first."""
        places = ("input_layernorm", "post_attention_layernorm") if norms_behind else ("input_layernorm",)
        self._norm: Final = next(
            (each for each in places if isinstance(getattr(self.block, each, None), nn.Module)), ""
        )
        if not self._norm:
            raise LoadError(
                f"a head of {config.model_type} layers is not supported: expected layers with an input_layernorm"
            )
        # Its frequencies are in no checkpoint: they have to be real where the rest may be on the meta device.
        with torch.device("cpu"):
            self.rotary_emb: nn.Module | None = None if rotary is None else type(rotary)(self.config)
        self._by_kind: Final = rotary is not None and "layer_type" in signature(rotary.forward).parameters

    def new_norm(self, size: int | None = None) -> nn.Module:
        """Another norm like the one at its attention, of `size` numbers where it is not to be as wide as that."""
        norm = copy.deepcopy(cast("nn.Module", getattr(self.block, self._norm)))
        if size is not None:
            weight = norm.get_parameter("weight")
            norm.weight = nn.Parameter(weight.detach()[:1].repeat(size))
        return norm

    def forward(
        self, hidden: Tensor, positions: Tensor, *, attention_mask: Tensor | None = None, **attention: Any
    ) -> Tensor:
        """hidden [B, T, in], positions [B, T] -> [B, T, hidden_size]"""
        rotated = self._rotated(hidden, positions)
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

    def _rotated(self, hidden: Tensor, positions: Tensor) -> Any:
        """What turns queries and keys at these positions; None: nothing does."""
        if self.rotary_emb is None:
            return None
        if hasattr(self.rotary_emb, "mrope_section"):
            # it turns parts of a head by time, height and width; of text they are one
            positions = positions.expand(3, *positions.shape)
        return self.rotary_emb(hidden, positions, *(self.config.layer_types[:1] if self._by_kind else ()))
