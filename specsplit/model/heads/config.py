"""What a head's config.json says, whoever wrote it."""

from __future__ import annotations

from typing import Any, Final

from transformers import CONFIG_MAPPING, PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model.attention.support import check_config
from specsplit.model.layers.text_config import text_config

_INDEXED: Final = dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "deepseek_v3")
"""Architectures whose layers attend to tokens that an indexer chooses, each with the one that has those layers without an indexer."""
_TWINS: Final = {"mimo": "qwen2", "kimi_k2": "deepseek_v3", **_INDEXED}
"""Architectures, and transformers' own that their layers are built as: it knows neither MiMo-7B, whose layers are Qwen2's, nor Kimi K2,
whose layers are DeepSeek-V3's."""


def architecture(facts: dict[str, Any], max_context: int | None = None) -> PretrainedConfig:
    """The transformers config of a decoder layer. Raises LoadError for an architecture that it does not know or refuses."""
    facts = dict(facts.get("transformer_layer_config") or facts)
    model_type = facts.pop("model_type", None)
    if model_type == "llama" and facts.get("qkv_bias"):  # EAGLE's authors say so where the target is a Qwen2
        model_type = "qwen2"
    known = _TWINS.get(str(model_type), str(model_type))
    if model_type in _INDEXED:
        # transformers writes a kind of attention there that only layers with an indexer have
        facts.pop("layer_types", None)
    if known not in CONFIG_MAPPING:
        raise LoadError(f"config.json names the architecture {model_type!r}, which transformers does not know")
    try:
        config = text_config(CONFIG_MAPPING[known].from_dict(facts))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LoadError(f"config.json is no {known} config: {error}") from error
    longest = getattr(config, "max_position_embeddings", None)
    check_config(config, min(max_context, longest) if max_context and longest else None)
    return config


def reach_of(config: PretrainedConfig, max_context: int) -> int:
    """Tokens of a text that a head with such layers was made for; `max_context` where the config does not say."""
    return getattr(config, "max_position_embeddings", None) or max_context


def num_layers_of(facts: dict[str, Any]) -> int:
    """How many decoder layers a head has by its config.json. Raises LoadError unless that is a number above 0."""
    layers = (facts.get("transformer_layer_config") or facts).get("num_hidden_layers", 1)
    if not isinstance(layers, int) or layers < 1:
        raise LoadError(f"config.json says num_hidden_layers is {layers!r}; expected 1 or more")
    return layers


def require_one_layer(facts: dict[str, Any]) -> None:
    """Raise LoadError for a head of several layers."""
    layers = num_layers_of(facts)
    if layers != 1:
        raise LoadError(f"config.json says num_hidden_layers is {layers}; expected a head of one layer")


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """The hidden states of a target of L layers that an EAGLE-3 head reads whose files name none, as FeatureNeed counts them."""
    return 2, num_layers // 2, num_layers - 3
