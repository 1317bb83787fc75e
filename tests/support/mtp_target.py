"""An alphabet target that is published with multi-token prediction layers, which know the alphabet too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

from tests.support.toys import END, VOCAB, successor, write_byte_tokenizer

LAYERS, EXPERTS, INNER = 2, 2, 8


@dataclass(frozen=True)
class Kind:
    """A family's target, and how it names its MTP layers."""

    facts: Mapping[str, Any]
    mtp_layers: int
    parts: tuple[str, str, str, str]
    """Names of the norms of embedding and state, of the projection, and of the last norm; {} stands for a layer's number."""
    block: str
    """What the names of the decoder layer's own tensors begin with."""
    first: int = 0
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Names in the target's layers, and in MTP layers."""
    lm_head: str = ""
    """The LM head of every layer; empty: it is the target's."""
    around: Mapping[str, Any] | None = None
    """The config of a multimodal model that the target is inside of, without that of the text model; None: it is in none."""


def _parts(prefix: str, final_norm: str) -> tuple[str, str, str, str]:
    return f"{prefix}enorm", f"{prefix}hnorm", f"{prefix}eh_proj", f"{prefix}{final_norm}"


KINDS: Final[Mapping[str, Kind]] = {
    "glm4_moe": Kind(
        {"n_routed_experts": EXPERTS, "num_experts_per_tok": 1, "first_k_dense_replace": 1, "head_dim": 2},
        mtp_layers=2,
        parts=_parts("model.layers.{}.", "shared_head.norm"),
        block="model.layers.{}.",
        first=LAYERS,
    ),
    "qwen3_next": Kind(
        {
            "layer_types": ["linear_attention", "full_attention"],
            "num_experts": EXPERTS,
            "num_experts_per_tok": 1,
            "shared_expert_intermediate_size": INNER,
            "head_dim": 4,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 4,
        },
        mtp_layers=1,
        parts=("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"),
        block="mtp.layers.{}.",
    ),
    "ernie4_5": Kind(
        {"head_dim": 4},
        mtp_layers=1,
        parts=("model.mtp_emb_norm.{}", "model.mtp_hidden_norm.{}", "model.mtp_linear_proj.{}", ""),
        block="model.mtp_block.{}.",
    ),
    "mimo_v2_flash": Kind(
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "dense"],
            "sliding_window": 8,
            "head_dim": 12,
            "v_head_dim": 8,
        },
        mtp_layers=3,
        parts=_parts("model.mtp.layers.{}.", "final_layernorm"),
        block="model.mtp.layers.{}.",
        renamed={"post_attention_layernorm.weight": "pre_mlp_layernorm.weight"},
    ),
    "step3p7": Kind(
        {
            "layer_types": ["full_attention", "sliding_attention", *["sliding_attention", "full_attention"] * 2][:5],
            "mlp_layer_types": ["dense"] * 5,
            "num_nextn_predict_layers": 3,
            "num_sliding_attention_heads": 4,
            "sliding_window": 8,
            "head_dim": 4,
            "pad_token_id": END,
        },
        mtp_layers=3,
        parts=_parts("model.layers.{}.", "shared_head.norm"),
        block="model.layers.{}.transformer.",
        first=LAYERS,
        lm_head="model.layers.{}.shared_head.output",
        around={"vision_config": {"width": 32, "layers": 1, "heads": 4, "patch_size": 8, "image_size": 16}},
    ),
}


def mtp_target(folder: Path, name: str = "glm4_moe", mtp_layers: int | None = None) -> Path:
    """Write one of a kind to `folder`, its MTP layers in a shard of their own beside the target's. mtp_layers: None: the kind's."""
    kind = KINDS[name] if mtp_layers is None else replace(KINDS[name], mtp_layers=mtp_layers)
    model = _model(name, kind)
    embeddings, lm_head = model.get_input_embeddings(), model.get_output_embeddings()
    with torch.no_grad():
        for named, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in named else 0.0)
        for token in range(VOCAB):
            embeddings.weight[token, token] = 1.0
            lm_head.weight[successor(token), token] = 1.0
    model.generation_config.pad_token_id = END
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    facts = json.loads((folder / "config.json").read_text())
    facts.get("text_config", facts)["num_nextn_predict_layers"] = kind.mtp_layers
    (folder / "config.json").write_text(json.dumps(facts))
    target = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate((target, _mtp_layers(kind, target)), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


_SHAPE: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": VOCAB,
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": END,
}


def _model(name: str, kind: Kind) -> Any:
    facts, config = {**_SHAPE, **kind.facts}, cast("Any", CONFIG_MAPPING[name])
    if kind.around is None:
        return AutoModelForCausalLM.from_config(config(**facts))
    return AutoModelForImageTextToText.from_config(config(text_config=facts, **kind.around))


def _mtp_layers(kind: Kind, target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Layers like the target's last one that hand on the embedding of their token: what follows it is what the LM head says."""
    last = f"layers.{LAYERS - 1}."
    block = {name.partition(last)[2]: each for name, each in target.items() if last in name and "vision" not in name}
    one = {kind.block + kind.renamed.get(name, name): each for name, each in block.items()}
    if kind.lm_head:
        one[f"{kind.lm_head}.weight"] = target["lm_head.weight"]
    token_norm, hidden_norm, proj, final_norm = kind.parts
    one |= {f"{norm}.weight": torch.ones(VOCAB) for norm in (token_norm, hidden_norm, final_norm) if norm}
    one[f"{proj}.weight"] = torch.cat([torch.eye(VOCAB), torch.zeros(VOCAB, VOCAB)], dim=1)
    numbers = range(kind.first, kind.first + kind.mtp_layers)
    return {name.format(number): each.clone() for number in numbers for name, each in one.items()}
