"""An alphabet target that is published with multi-token prediction layers, which know the alphabet too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from tests.support.toys import END, VOCAB, successor, write_byte_tokenizer

LAYERS, MTP_LAYERS, EXPERTS, INNER, HEADS, WIDTH = 2, 2, 2, 8, 4, 2
FACTS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": VOCAB,
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 1,
    "first_k_dense_replace": 1,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": WIDTH,
    "max_position_embeddings": 512,
    "num_nextn_predict_layers": MTP_LAYERS,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": END,
}


def mtp_target(folder: Path) -> Path:
    """Write one of GLM-4.5's kind to `folder`, its MTP layers in a shard of their own behind the target's layers."""
    model = Glm4MoeForCausalLM(Glm4MoeConfig(**FACTS))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        for token in range(VOCAB):
            model.model.embed_tokens.weight[token, token] = 1.0
            model.lm_head.weight[successor(token), token] = 1.0
    model.generation_config.pad_token_id = END
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | {"num_nextn_predict_layers": MTP_LAYERS}))
    _add_layers(folder)
    return folder


def _add_layers(folder: Path) -> None:
    """Layers that hand on the embedding of their token: what follows it is what the LM head says."""
    shards = {"model-00001-of-00002.safetensors": load_file(folder / "model.safetensors")}
    last = f"model.layers.{LAYERS - 1}."
    block = {
        name.removeprefix(last): each
        for name, each in shards["model-00001-of-00002.safetensors"].items()
        if name.startswith(last)
    }
    mine = shards["model-00002-of-00002.safetensors"] = {}
    for layer in range(LAYERS, LAYERS + MTP_LAYERS):
        mine |= {f"model.layers.{layer}.{name}": each.clone() for name, each in block.items()}
        mine |= {
            f"model.layers.{layer}.{norm}.weight": torch.ones(VOCAB) for norm in ("enorm", "hnorm", "shared_head.norm")
        }
        mine[f"model.layers.{layer}.eh_proj.weight"] = torch.cat([torch.eye(VOCAB), torch.zeros(VOCAB, VOCAB)], dim=1)
    for file, tensors in shards.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
