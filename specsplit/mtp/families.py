"""The families whose MTP layers are known, as data: one entry each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from specsplit.mtp.family import MtpFamily, MtpFormula

MIMO: Final = MtpFamily(
    "MTP layers as MiMo names them",  # github.com/XiaomiMiMo/MiMo
    token_norm="model.mtp_layers.{layer}.token_layernorm",
    hidden_norm="model.mtp_layers.{layer}.hidden_layernorm",
    proj="model.mtp_layers.{layer}.input_proj",
    final_norm="model.mtp_layers.{layer}.final_layernorm",
    block="model.mtp_layers.{layer}",
    formula=MtpFormula(embedding_first=False),
    model_types=("mimo",),
)
DEEPSEEK: Final = MtpFamily(
    "MTP layers as DeepSeek names them",  # DeepSeek-V3, GLM-4.5
    token_norm="model.layers.{layer}.enorm",
    hidden_norm="model.layers.{layer}.hnorm",
    proj="model.layers.{layer}.eh_proj",
    final_norm="model.layers.{layer}.shared_head.norm",
    block="model.layers.{layer}",
    formula=MtpFormula(normed_states=False),
    model_types=("deepseek_v3", "glm4_moe"),
    behind_target=True,
    copies=("embed_tokens", "shared_head.head"),
)
FAMILIES: Final = (MIMO, DEEPSEEK)


def family_of(facts: Mapping[str, Any], names: Collection[str]) -> MtpFamily | None:
    """The family of the MTP layers in a target's folder with this config.json and tensors of these names; None: there are none known."""
    inner: Any = facts.get("text_config") or {}  # models that also see or hear keep the decoder's facts one level down
    kinds = {facts.get("model_type"), inner.get("model_type")}
    known = (family for family in FAMILIES if kinds.intersection(family.model_types))
    return next((family for family in known if family.recognises(names)), None)


def family_among(facts: Mapping[str, Any], names: Collection[str]) -> MtpFamily | None:
    """`family_of`, or else the family whose names a folder of MTP layers alone has, whatever layers they are; None: neither is known."""
    found = family_of(facts, names)
    return found or next((family for family in (MIMO, DEEPSEEK) if family.recognises(names)), None)
