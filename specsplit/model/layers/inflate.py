"""A deeper model of the same function: for benchmarks in which a pocket model has to cost what a large one does."""

from __future__ import annotations

import copy
from typing import Final

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from specsplit.errors import LoadError
from specsplit.model.layers.capture import decoder_layers

_OUTPUT_PROJECTIONS: Final = ("o_proj", "down_proj")


def inflate(model: PreTrainedModel, layers: int) -> None:
    """Append decoder layers that add zero to the residual stream until there are `layers` of them.

    Each is a copy of the last layer with zero output projections, so it costs as much and the logits stay the same, bit for bit.
    Raises LoadError if the model has more layers already, or is not built of layers with o_proj and down_proj.
    """
    stack = decoder_layers(model)
    if stack is None:
        raise LoadError(f"{type(model).__name__} has no list of decoder layers to inflate")
    if layers < len(stack):
        raise LoadError(f"inflate_layers is {layers}, but the model has {len(stack)} layers already")
    while len(stack) < layers:
        stack.append(_silent_copy(stack[-1], len(stack), model.config))
    model.config.num_hidden_layers = layers
    if model.config.to_dict().get("layer_types"):
        kinds = list(model.config.layer_types)
        model.config.layer_types = kinds + kinds[-1:] * (layers - len(kinds))


def _silent_copy(layer: nn.Module, index: int, config: PretrainedConfig) -> nn.Module:
    twin = copy.deepcopy(layer, {id(config): config})  # layers share their model's config, which can change later
    silenced: set[str] = set()
    with torch.no_grad():
        for name, module in twin.named_modules():
            last = name.rpartition(".")[2]
            if last in _OUTPUT_PROJECTIONS:
                silenced.add(last)
                for parameter in module.parameters():
                    parameter.zero_()
            if hasattr(module, "layer_idx"):
                module.layer_idx = index  # pyright: ignore[reportArgumentType] (a plain attribute, no parameter)
    if silenced != set(_OUTPUT_PROJECTIONS):
        raise LoadError(
            f"{type(layer).__name__} has no {' and '.join(_OUTPUT_PROJECTIONS)} to zero, so it cannot be inflated"
        )
    return twin
