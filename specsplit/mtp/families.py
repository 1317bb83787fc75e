"""The families whose MTP layers are known, as data: one entry each.

Names, formulas and what the first step reads are those of the models' code in vLLM 0.32 and, where it has one, transformers 5.23. The
decoder layers are transformers' own (`specsplit.model.heads.blocks`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
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
    model_types=("deepseek_v3", "glm4_moe", "glm4_moe_lite"),
    behind_target=True,
    copies=("embed_tokens", "shared_head.head"),
)
DEEPSEEK_INDEXED: Final = replace(
    DEEPSEEK,
    name="MTP layers as DeepSeek-V3.2 names them",  # DeepSeek-V3.2, GLM-5
    model_types=("deepseek_v32", "glm_moe_dsa"),
    indexer=tuple(f"self_attn.indexer.{part}" for part in ("wq_b", "wk", "k_norm", "weights_proj")),
)
MIMO_V2: Final = MtpFamily(
    "MTP layers as MiMo-V2 names them",
    token_norm="model.mtp.layers.{layer}.enorm",
    hidden_norm="model.mtp.layers.{layer}.hnorm",
    proj="model.mtp.layers.{layer}.eh_proj",
    final_norm="model.mtp.layers.{layer}.final_layernorm",
    block="model.mtp.layers.{layer}",
    formula=MtpFormula(),
    model_types=("mimo_v2_flash",),
    renames=(
        ("post_attention_layernorm.", "pre_mlp_layernorm."),
        ("self_attn.sinks", "self_attn.attention_sink_bias"),
    ),
)
STEP3P5: Final = MtpFamily(
    "MTP layers as Step-3.5 names them",
    token_norm="model.layers.{layer}.enorm",
    hidden_norm="model.layers.{layer}.hnorm",
    proj="model.layers.{layer}.eh_proj",
    final_norm="model.layers.{layer}.shared_head.norm",
    block="model.layers.{layer}.transformer",
    # vLLM's code, which the authors of the model wrote; transformers' generic one reads everything behind norms.
    formula=MtpFormula(normed_states=False, own_lm_head=True, normed_features=False),
    model_types=("step3p5", "step3p7"),
    behind_target=True,
    copies=("embed_tokens",),
    lm_head="model.layers.{layer}.shared_head.output",
)
QWEN3_NEXT: Final = MtpFamily(
    "MTP layers as Qwen3-Next names them",
    token_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    proj="mtp.fc",
    final_norm="mtp.norm",
    block="mtp.layers.{layer}",
    formula=MtpFormula(),
    model_types=(
        "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "exaone_moe", "exaone4_5",
    ),
)  # fmt: skip
ERNIE: Final = MtpFamily(
    "MTP layers as ERNIE-4.5 names them",
    token_norm="model.mtp_emb_norm.{layer}",
    hidden_norm="model.mtp_hidden_norm.{layer}",
    proj="model.mtp_linear_proj.{layer}",
    final_norm="",
    block="model.mtp_block.{layer}",
    formula=MtpFormula(final_norm=False, first_blank=True),
    model_types=("ernie4_5", "ernie4_5_moe"),
)
HY_V3: Final = MtpFamily(
    "MTP layers as Hunyuan-V3 names them",
    token_norm="model.layers.{layer}.enorm",
    hidden_norm="model.layers.{layer}.hnorm",
    proj="model.layers.{layer}.eh_proj",
    final_norm="model.layers.{layer}.final_layernorm",
    block="model.layers.{layer}",
    formula=MtpFormula(first_blank=True),
    model_types=("hy_v3",),
    behind_target=True,
    copies=("embed_tokens", "shared_head"),
    renames=(
        ("mlp.gate.", "mlp.router.gate."),
        ("mlp.e_score_correction_bias", "mlp.expert_bias"),
        ("mlp.shared_experts.", "mlp.shared_mlp."),
    ),
)
BAILING: Final = MtpFamily(
    "MTP layers as Ling names them",
    token_norm="model.layers.{layer}.enorm",
    hidden_norm="model.layers.{layer}.hnorm",
    proj="model.layers.{layer}.eh_proj",
    final_norm="model.layers.{layer}.final_layernorm",
    block="model.layers.{layer}",
    formula=MtpFormula(),
    model_types=("bailing_hybrid",),
    behind_target=True,
    copies=("embed_tokens", "shared_head"),
    renames=(
        ("self_attn.o_proj.", "attention.dense."),
        ("self_attn.", "attention."),
        ("mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"),
    ),
)
NEMOTRON_H: Final = MtpFamily(
    "MTP layers as Nemotron-H names them",  # a step is two mixers: attention, then experts
    token_norm="mtp.layers.{layer}.enorm",
    hidden_norm="mtp.layers.{layer}.hnorm",
    proj="mtp.layers.{layer}.eh_proj",
    final_norm="mtp.layers.1.final_layernorm",
    block="mtp.layers",
    formula=MtpFormula(),
    model_types=("nemotron_h",),
)
LONGCAT: Final = MtpFamily(
    "MTP layers as LongCat names them",
    token_norm="model.mtp.layers.{layer}.enorm.m",
    hidden_norm="model.mtp.layers.{layer}.hnorm.m",
    proj="model.mtp.layers.{layer}.eh_proj",
    final_norm="model.mtp.norm",
    block="model.mtp.layers.{layer}",
    formula=MtpFormula(),
    model_types=("longcat_flash",),
    renames=(("mlp.", "transformer_layer.mlp."),),
    embeddings="model.mtp.embed_tokens.weight",
)
SAVED: Final = frozenset({"DeepseekV3ForCausalLMNextN", "MiMoMTP"})
"""Architectures of folders of MTP layers alone, as they are written by `save_head`."""
FAMILIES: Final = (
    MIMO,
    DEEPSEEK,
    DEEPSEEK_INDEXED,
    MIMO_V2,
    STEP3P5,
    QWEN3_NEXT,
    ERNIE,
    HY_V3,
    BAILING,
    NEMOTRON_H,
    LONGCAT,
)
REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mimo_v2": "transformers has no layers of this kind, only those of mimo_v2_flash",
        "bailing_moe": "transformers has no layers of this kind, only those of bailing_hybrid",
        "bailing_moe_v2": "transformers has no layers of this kind, only those of bailing_hybrid",
        "pangu_ultra_moe": "transformers has no layers of this kind",
    }
)
"""Kinds of targets that are published with MTP layers which cannot be run, and what is missing."""


def family_of(facts: Mapping[str, Any], names: Collection[str]) -> MtpFamily | None:
    """The family of the MTP layers in a target's folder with this config.json and tensors of these names; None: there are none known."""
    kinds = kinds_of(facts)
    known = (family for family in FAMILIES if kinds.intersection(family.model_types))
    return next((family for family in known if family.recognises(names)), None)


def family_among(facts: Mapping[str, Any], names: Collection[str]) -> MtpFamily | None:
    """`family_of`, or else the family by whose names layers of any kind were saved alone, which `architectures` tells; None: neither is
    known."""
    found = family_of(facts, names)
    if found is None and SAVED.intersection(facts.get("architectures") or ()):
        return next((family for family in (MIMO, DEEPSEEK) if family.recognises(names)), None)
    return found


def kinds_of(facts: Mapping[str, Any]) -> frozenset[str]:
    """The `model_type` of a config.json, and of the text model inside of it."""
    inner: Any = facts.get("text_config") or {}  # models that also see or hear keep the decoder's facts one level down
    return frozenset(kind for kind in (facts.get("model_type"), inner.get("model_type")) if isinstance(kind, str))
