"""What the config.json of an EAGLE-3 head says, whoever wrote it: its authors, SpecForge, speculators, ModelOpt or vLLM."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model.heads.config import num_layers_of, usual_layers
from specsplit.model.heads.eagle3_variant import Eagle3Variant

MASK: Final = "mask_hidden"
"""The tensor that P-EAGLE heads have, and no others."""
_LAYER_IDS: Final = "eagle_aux_hidden_state_layer_ids"
_NUM_STATES: Final = "num_aux_hidden_states"
_MASK_TOKENS: Final = ("mask_token_id", "pard_token", "ptd_token_id")
_OF_P_EAGLE: Final = ("parallel_drafting", "pard_token", "ptd_token_id")
"""Settings that P-EAGLE heads have, and no others."""


@dataclass(frozen=True)
class Eagle3Config:
    """An EAGLE-3 head by its config.json and the names of its tensors."""

    num_blocks: int
    draft_vocab_size: int | None
    """Tokens that it proposes, as stated."""
    target_hidden_size: int | None
    """Width of the target's hidden states; None: the head is as wide."""
    layers: tuple[int, ...]
    """The hidden states that a feature consists of, as FeatureNeed counts them."""
    variant: Eagle3Variant

    @classmethod
    def read(cls, facts: dict[str, Any], names: Collection[str], target_layers: int) -> Eagle3Config:
        """facts: config.json. names: of the tensors. target_layers: of the target. Raises LoadError for what is not said plainly."""
        return cls(
            num_layers_of(facts),
            _said(facts, "draft_vocab_size"),
            _said(facts, "target_hidden_size"),
            feature_layers(facts, target_layers),
            _variant(facts, MASK in names or is_p_eagle(facts)),
        )

    def of_layers(self, config: PretrainedConfig) -> PretrainedConfig:
        """Narrow the config that the file gives to the decoder layers of the head, and return it: they are its first, without experts."""
        kinds = getattr(config, "layer_types", None)
        if kinds:
            config.layer_types = kinds[: self.num_blocks]
        if hasattr(config, "first_k_dense_replace"):
            config.first_k_dense_replace = self.num_blocks
        return config


def is_p_eagle(facts: dict[str, Any]) -> bool:
    """Tell whether config.json is that of a P-EAGLE head, whatever tensors there are."""
    said = (_said(facts, key) for key in _OF_P_EAGLE)
    return facts.get("speculators_model_type") == "peagle" or any(each not in (None, False) for each in said)


def feature_layers(facts: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """The hidden states that an EAGLE-3 head reads, as FeatureNeed counts them (k: behind k decoder layers).

    `eagle_config.eagle_aux_hidden_state_layer_ids` (SpecForge, SGLang, ModelOpt) names outputs of layers counted from 0: k - 1. At the top
    level (speculators, vLLM) the same key names inputs of layers counted from 0: k. So does the default for a
    target of L layers, `usual_layers`. Raises LoadError unless they are layers of the target, each once.
    """
    eagle = facts.get("eagle_config") or {}
    inputs, outputs = facts.get(_LAYER_IDS), eagle.get(_LAYER_IDS)
    if inputs:
        layers = tuple(inputs)
    elif outputs:
        layers = tuple(layer + 1 for layer in outputs)
    else:
        layers = usual_layers(num_layers)
    stated = _said(facts, _NUM_STATES)
    if stated is not None and stated != len(layers):
        raise LoadError(
            f"config.json says that a feature has {stated} hidden states ({_NUM_STATES}), and {_LAYER_IDS} "
            + (f"names {len(layers)}" if inputs or outputs else "does not name them")
        )
    if len(set(layers)) < len(layers) or min(layers) < 0 or max(layers) > num_layers:
        raise LoadError(
            f"a head on hidden states {list(layers)} of a target of {num_layers} layers: "
            "expected different ones; name them in eagle_config.eagle_aux_hidden_state_layer_ids of its config.json"
        )
    return layers


def _variant(facts: dict[str, Any], masked: bool) -> Eagle3Variant:
    scale = _said(facts, "logit_scale")
    variant = Eagle3Variant(
        norm_before_residual=_flag(facts, "norm_before_residual", facts.get("speculators_model_type") == "eagle3"),
        norm_before_fc=_flag(facts, "norm_before_fc"),
        fc_norm=_flag(facts, "fc_norm"),
        norm_output=_flag(facts, "norm_output"),
        logit_scale=1.0 if scale is None else float(scale),
        mask_token=_mask_token(facts) if masked else None,
    )
    if variant.norm_before_fc and variant.fc_norm:
        raise LoadError("config.json sets norm_before_fc and fc_norm: a feature is normed in one of these ways")
    return variant


def _mask_token(facts: dict[str, Any]) -> int:
    for key in _MASK_TOKENS:
        token = _said(facts, key)
        if token is not None:
            return int(token)
    raise LoadError(f"a P-EAGLE head needs the token of its mask: config.json has none of {', '.join(_MASK_TOKENS)}")


def _flag(facts: dict[str, Any], key: str, otherwise: bool = False) -> bool:
    said = _said(facts, key)
    return otherwise if said is None else bool(said)


def _said(facts: dict[str, Any], key: str) -> Any:
    """What the file says, at its top, of the decoder layers, or in eagle_config; None: nothing. Raises LoadError for two answers."""
    places = (facts, facts.get("transformer_layer_config") or {}, facts.get("eagle_config") or {})
    said = [place[key] for place in places if place.get(key) is not None]
    if any(each != said[0] for each in said):
        raise LoadError(f"config.json says of {key} both {' and '.join(map(repr, said))}")
    return said[0] if said else None
