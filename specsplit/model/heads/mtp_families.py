"""The families whose MTP layers are known, as data: one entry each."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from specsplit.model.heads.mtp_family import MtpFamily, MtpFormula

MIMO: Final = MtpFamily(
    "MTP layers as MiMo names them",  # github.com/XiaomiMiMo/MiMo
    token_norm="model.mtp_layers.{layer}.token_layernorm",
    hidden_norm="model.mtp_layers.{layer}.hidden_layernorm",
    proj="model.mtp_layers.{layer}.input_proj",
    final_norm="model.mtp_layers.{layer}.final_layernorm",
    block="model.mtp_layers.{layer}",
    formula=MtpFormula(embedding_first=False),
)
DEEPSEEK: Final = MtpFamily(
    "MTP layers as DeepSeek names them",  # DeepSeek-V3, GLM-4.5
    token_norm="model.layers.{layer}.enorm",
    hidden_norm="model.layers.{layer}.hnorm",
    proj="model.layers.{layer}.eh_proj",
    final_norm="model.layers.{layer}.shared_head.norm",
    block="model.layers.{layer}",
    formula=MtpFormula(normed_states=False),
    behind_target=True,
    copies=("embed_tokens", "shared_head.head"),
)
FAMILIES: Final = (MIMO, DEEPSEEK)


def family_among(names: Collection[str]) -> MtpFamily | None:
    """The family of the MTP layers among tensors with these names; None: there are none, or of no known family."""
    return next((family for family in FAMILIES if family.recognises(names)), None)
