"""Decoder layers that adapters add to as kernels for a CPU: each is made as it would be without them, which are then added inside of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from specsplit.model.adapters.linear import AdaptedLinear
from specsplit.model.layers.capture import decoder_layers
from specsplit.model.layers.cpu import CPU, NativeLayer
from specsplit.model.layers.cpu.decoder import AdaptedRows
from specsplit.model.layers.parts import AttentionParts, DecoderParts, MlpParts
from specsplit.model.layers.replacing import Replacing
from specsplit.model.native.decoder import Adapted


@torch.inference_mode()
def fuse_layers(model: PreTrainedModel, count: int, rows: AdaptedRows) -> set[AdaptedLinear]:
    """Replace those of a model's decoder layers that are kernels as a whole without adapters -> the adapted layers that were in them.

    count: of all adapters. rows: of the forward under way.
    """
    layers, fused, replacing = decoder_layers(model), set[AdaptedLinear](), Replacing(CPU)
    owner = next((each for each in model.modules() if any(child is layers for child in each.children())), None)
    if layers is None or owner is None:
        return fused
    for name, layer in list(layers.named_children()):
        adapted = {each for each in layer.modules() if isinstance(each, AdaptedLinear)}
        products = _products(layer)
        if not adapted or products is None:
            continue
        made = _native(layer, getattr(owner, "rotary_emb", None), replacing)
        if made is not None:
            kernels = (each.kernel(count) if isinstance(each, AdaptedLinear) else None for each in products)
            made.adapt(Adapted(*kernels), rows)
            setattr(layers, name, made)
            fused |= adapted
    return fused


def _native(layer: nn.Module, rotary: nn.Module | None, replacing: Replacing) -> NativeLayer | None:
    """What stands for a layer where there are no adapters; None: it is no kernel. `rotary` makes cos and sin of positions."""
    holder = nn.Module()
    holder.layer = _without_adapters(layer)
    replacing.below(holder, rotary, linear=False)
    made = holder.layer
    return made if isinstance(made, NativeLayer) else None


def _products(layer: nn.Module) -> Sequence[nn.Module] | None:
    """Linear layers of a decoder layer, in the order of `Adapted`; None: it is built otherwise."""
    parts = DecoderParts.of(layer)
    attention = None if parts is None else AttentionParts.of(parts.attention)
    mlp = None if parts is None else MlpParts.of(parts.mlp)
    return None if attention is None or mlp is None else (*attention.projections, attention.output, *mlp)


def _without_adapters(module: nn.Module) -> nn.Module:
    """A module with the same weights, in which plain linear layers stand for the adapted ones."""
    if isinstance(module, AdaptedLinear):
        return module.inner
    made = copy.copy(module)
    vars(made)["_modules"] = {
        name: None if child is None else _without_adapters(child) for name, child in vars(module)["_modules"].items()
    }
    return made
