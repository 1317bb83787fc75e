"""The decoder layers of heads as transformers builds them, and of an MTP step, family by family, what they are behind the target's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, cast

from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoModel, PretrainedConfig

from specsplit.errors import LoadError

WITHOUT_POSITIONS: Final = frozenset({"nemotron_h"})
"""Architectures whose attention knows of no positions."""


def block_config(config: PretrainedConfig, facts: Mapping[str, Any], step: int) -> PretrainedConfig:
    """The config of the layer of one step. facts: the target's config.json. Raises LoadError for one that cannot be built."""
    changed = copy.deepcopy(config)
    inner: Any = facts.get("text_config") or facts
    # These layers stand behind the target's, the first few of which alone are dense.
    if hasattr(changed, "first_k_dense_replace"):
        changed.first_k_dense_replace = max(0, config.first_k_dense_replace - config.num_hidden_layers)
    kinds: Any = getattr(config, "mlp_layer_types", None)
    if kinds:
        changed.mlp_layer_types = kinds[-1:]
    _CHANGES.get(config.model_type, _unchanged)(changed, inner, step)
    return changed


def _unchanged(config: Any, facts: Mapping[str, Any], step: int) -> None:
    pass


def _mimo_v2(config: Any, facts: Mapping[str, Any], step: int) -> None:
    """A dense MLP, and attention within a window."""
    config.layer_types, config.mlp_layer_types = ["sliding_attention"], ["dense"]
    config.rms_norm_eps = facts.get("layernorm_epsilon", config.rms_norm_eps)
    rope = config.rope_parameters["sliding_attention"]
    rope["rope_theta"] = facts.get("swa_rope_theta", rope["rope_theta"])
    rope["partial_rotary_factor"] = facts.get("partial_rotary_factor", rope["partial_rotary_factor"])
    config.attention_value_scale = facts.get("attention_value_scale", config.attention_value_scale)
    expected = {
        "swa_num_attention_heads": config.num_attention_heads,
        "swa_num_key_value_heads": 2 * config.num_key_value_heads,
        "swa_head_dim": config.head_dim,
        "swa_v_head_dim": config.v_head_dim,
        "add_swa_attention_sink_bias": True,
    }
    for name, built in expected.items():
        if facts.get(name, built) != built:
            raise LoadError(f"config.json says {name} is {facts[name]}; transformers builds these layers with {built}")


def _step3p5(config: Any, facts: Mapping[str, Any], step: int) -> None:
    """Each step has a kind of attention and of MLP of its own, listed behind those of the target's layers."""
    kind = (config.mtp_layer_types or ["full_attention"] * (step + 1))[step]
    mlp = (config.mtp_mlp_layer_types or ["dense"] * (step + 1))[step]
    if mlp != "dense":
        raise LoadError(f"MTP layer {step} has an MLP of kind {mlp}; expected dense ones, as published")
    place = config.num_hidden_layers + step
    for name in ("swiglu_limits", "swiglu_limits_shared"):
        limits = facts.get(name)
        setattr(config, name, [limits[place]] if limits and len(limits) > place else None)
    windowed = kind == "sliding_attention"
    config.per_layer_config = {0: {"num_attention_heads": config.num_sliding_attention_heads}} if windowed else None
    config.layer_types, config.mlp_layer_types = [kind], [mlp]


def _exaone(config: Any, facts: Mapping[str, Any], step: int) -> None:
    """A dense MLP, and attention as in the target's layer of that number."""
    kind = (facts.get("mtp_layer_types") or config.layer_types)[step]
    config.layer_types, config.mlp_layer_types = [kind], ["dense"]
    for name in ("sliding_windows", "mtp_sliding_windows", "swiglu_limits"):
        if facts.get(name):
            raise LoadError(f"config.json sets {name}, which transformers' layers of exaone_moe do not know")


def _exaone4(config: Any, facts: Mapping[str, Any], step: int) -> None:
    """Attention as in the target's layer of that number."""
    config.layer_types = config.layer_types[step : step + 1]


def _ernie(config: Any, facts: Mapping[str, Any], step: int) -> None:
    """A dense MLP."""
    config.moe_layer_start_index = 1


def _nemotron(config: Any, facts: Mapping[str, Any], step: int) -> None:
    if config.mtp_layers_block_type != ["full_attention", "moe"]:
        raise LoadError(
            f"its MTP layers are mixers of the kinds {', '.join(config.mtp_layers_block_type)} (mtp_hybrid_override_pattern); expected "
            "full_attention, moe (*E), which is what was published"
        )


_CHANGES: Final[Mapping[str, Callable[[Any, Mapping[str, Any], int], None]]] = {
    "mimo_v2_flash": _mimo_v2,
    "step3p5": _step3p5,
    "exaone_moe": _exaone,
    "exaone4": _exaone4,
    "ernie4_5_moe": _ernie,
    "nemotron_h": _nemotron,
}


class Sublayer(nn.Module):
    """One of the two halves of a LongCat layer, by itself: attention and a dense MLP, a norm in front of each."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        whole: Any = layer
        self.input_layernorm: nn.Module = whole.input_layernorm[0]
        self.self_attn: nn.Module = whole.self_attn[0]
        self.post_attention_layernorm: nn.Module = whole.post_attention_layernorm[0]
        self.mlp: nn.Module = whole.mlps[0]

    def forward(self, hidden: Tensor, **attention: Any) -> Tensor:
        """hidden [B, T, hidden_size] -> the same shape"""
        hidden = hidden + self.self_attn(hidden_states=self.input_layernorm(hidden), **attention)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Mixers(nn.ModuleList):
    """Nemotron-H's layers of one mixer each, one behind the other."""

    @property
    def input_layernorm(self) -> nn.Module:
        """The norm in front of the first mixer."""
        first: Any = self[0]
        return first.norm

    def forward(self, hidden: Tensor, **attention: Any) -> Tensor:
        """hidden [B, T, hidden_size] -> the same shape"""
        attention.pop("position_embeddings", None)
        for layer in self:
            hidden = layer(hidden, **attention)
        return hidden


def few_layers(config: PretrainedConfig, count: int) -> PretrainedConfig:
    """Copy a config, with `count` layers and next to no vocabulary."""
    few: Any = copy.deepcopy(config)
    few.num_hidden_layers = count
    few.vocab_size = 1
    few.pad_token_id = 0
    if config.model_type == "nemotron_h":  # one layer here is what is published as several of one mixer each
        few.layer_types = list(few.mtp_layers_block_type)
        few.num_hidden_layers = len(few.layer_types)
        return few
    if config.model_type == "longcat_flash":
        few.num_layers = count
    kinds: list[str] = list(getattr(config, "layer_types", None) or ())
    if kinds and len(kinds) != count:  # layers behind the target's own attend to everything, unless all are of one kind
        few.layer_types = [kinds[0] if len(set(kinds)) == 1 else "full_attention"] * count
    return few


def decoder(config: PretrainedConfig, attn_implementation: str) -> nn.Module:
    """The decoder with these layers. transformers has some only inside of multimodal models, in a module of their own. Raises LoadError."""
    if type(config) in MODEL_MAPPING:
        return AutoModel.from_config(config, attn_implementation=attn_implementation)
    module = import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    kind: Any = getattr(module, type(config).__name__.removesuffix("Config") + "Model", None)
    if kind is None:
        raise LoadError(f"transformers has no decoder of {config.model_type} layers by itself")
    return kind._from_config(config, attn_implementation=attn_implementation)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of such a model; none: it is not built of `layers`."""
    layers: Any = getattr(model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        return []
    kind = cast("Any", model).config.model_type
    if kind == "longcat_flash":
        return [Sublayer(layer) for layer in layers]
    if kind == "exaone_moe":  # the target's layers that see all tokens turn nothing, an MTP layer always does
        for layer in cast("list[Any]", list(layers)):
            layer.self_attn.sliding_window = layer.self_attn.sliding_window if layer.self_attn.is_sliding else None
    return [Mixers(layers)] if kind == "nemotron_h" else list(layers)
