"""What a head's config.json says, whoever wrote it."""

from __future__ import annotations

from typing import Any, Final

from transformers import CONFIG_MAPPING, PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model.attention.support import check_config
from specsplit.model.layers.text_config import text_config

_TWINS: Final = {"mimo": "qwen2"}
"""Architectures that transformers does not know, and the one of its own that their layers are: MiMo-7B's are Qwen2's."""
_NOT_READ: Final = ("norm_before_fc", "fc_norm", "norm_output", "layernorms")
"""Variants of speculators' heads with norms that ours have not."""


def architecture(facts: dict[str, Any], max_context: int | None = None) -> PretrainedConfig:
    """The transformers config of a decoder layer. Raises LoadError for an architecture that it does not know or refuses."""
    facts = dict(facts.get("transformer_layer_config") or facts)
    model_type = facts.pop("model_type", None)
    if model_type == "llama" and facts.get("qkv_bias"):  # EAGLE's authors say so where the target is a Qwen2
        model_type = "qwen2"
    known = _TWINS.get(str(model_type), str(model_type))
    if known not in CONFIG_MAPPING:
        raise LoadError(f"config.json names the architecture {model_type!r}, which transformers does not know")
    try:
        config = text_config(CONFIG_MAPPING[known].from_dict(facts))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LoadError(f"config.json is no {known} config: {error}") from error
    longest = getattr(config, "max_position_embeddings", None)
    check_config(config, min(max_context, longest) if max_context and longest else None)
    return config


def require_plain(facts: dict[str, Any]) -> None:
    """Raise LoadError for a variant that is not supported."""
    for name in _NOT_READ:
        if facts.get(name):
            raise LoadError(f"config.json sets {name}: heads with that norm are not supported")
    method = facts.get("transformer_layer_config") or facts
    layers = method.get("num_hidden_layers", 1)
    if layers != 1:
        raise LoadError(f"config.json says num_hidden_layers is {layers}; expected a head of one layer")


def feature_layers(facts: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """The hidden states that an EAGLE-3 head reads, as FeatureNeed counts them (k: behind k decoder layers).

    `eagle_config.eagle_aux_hidden_state_layer_ids` (SpecForge, SGLang) names outputs of layers counted from 0: k - 1. At the top
    level (speculators, vLLM) the same key names inputs of layers counted from 0: k. So does the default for a
    target of L layers, `usual_layers`. Raises LoadError unless they are layers of the target, each once.
    """
    eagle = facts.get("eagle_config") or {}
    inputs, outputs = facts.get("eagle_aux_hidden_state_layer_ids"), eagle.get("eagle_aux_hidden_state_layer_ids")
    if inputs:
        layers = tuple(inputs)
    elif outputs:
        layers = tuple(layer + 1 for layer in outputs)
    else:
        layers = usual_layers(num_layers)
    if len(set(layers)) < len(layers) or min(layers) < 0 or max(layers) > num_layers:
        raise LoadError(
            f"a head on hidden states {list(layers)} of a target of {num_layers} layers: "
            "expected different ones; name them in eagle_config.eagle_aux_hidden_state_layer_ids of its config.json"
        )
    return layers


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """The hidden states of a target of L layers that an EAGLE-3 head reads whose files name none, as FeatureNeed counts them."""
    return 2, num_layers // 2, num_layers - 3
