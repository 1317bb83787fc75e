"""Small random checkpoints in the layouts that people publish, name by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specsplit.values import DrafterKind

VOCAB, DRAFT_VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 97, 40, 32, 48, 4, 2, 8, 8
TARGET_FACTS: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
HEAD_FACTS = {**TARGET_FACTS, "num_hidden_layers": 1}
TARGET_SHAPES = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM


@dataclass(frozen=True)
class Published:
    """What is in somebody's folder."""

    kind: DrafterKind
    facts: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    inside_target: bool = False
    """True for layers that come with the target, in one checkpoint."""
    features: tuple[int, ...] = (-1,)
    """The layers that FeatureNeed should name."""
    arithmetic: dict[str, Any] = field(default_factory=dict)
    """What the reference has to know and cannot tell from the names."""

    def tensors(self) -> dict[str, Tensor]:
        shapes = {**self.shapes, **(TARGET_SHAPES if self.inside_target else {})}
        return {name: random_tensor(name, shape, seed) for seed, (name, shape) in enumerate(sorted(shapes.items()))}


def attention(prefix: str, *, wide: int = 1, bias: bool = False) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}.self_attn.q_proj.weight": (Q, wide * HIDDEN),
        f"{prefix}.self_attn.k_proj.weight": (KV, wide * HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": (KV, wide * HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, Q),
    }
    biases: dict[str, tuple[int, ...]] = {
        f"{prefix}.self_attn.q_proj.bias": (Q,),
        f"{prefix}.self_attn.k_proj.bias": (KV,),
        f"{prefix}.self_attn.v_proj.bias": (KV,),
    }
    return {**shapes, **(biases if bias else {})}


def mlp(prefix: str, inner: int = INNER) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (inner, HIDDEN),
        f"{prefix}.up_proj.weight": (inner, HIDDEN),
        f"{prefix}.down_proj.weight": (HIDDEN, inner),
    }


def norms(*names: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (HIDDEN,) for name in names}


def eagle(*, bias: bool = True, qkv_bias: bool = False) -> Published:
    shapes = {
        "embed_tokens.weight": (VOCAB, HIDDEN),
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        **({"fc.bias": (HIDDEN,)} if bias else {}),
        **attention("layers.0", bias=qkv_bias),
        **mlp("layers.0.mlp"),
        **norms("layers.0.post_attention_layernorm"),
    }
    return Published(DrafterKind.EAGLE, {**HEAD_FACTS, "bias": bias, "qkv_bias": qkv_bias}, shapes)


def eagle3(block: str = "midlayer", facts: dict[str, Any] | None = None, **options: Any) -> Published:
    shapes: dict[str, tuple[int, ...]] = {
        "d2t": (DRAFT_VOCAB,),
        "t2d": (VOCAB,),
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        **norms("norm", f"{block}.hidden_norm", f"{block}.input_layernorm", f"{block}.post_attention_layernorm"),
        **attention(block, wide=2),
        **mlp(f"{block}.mlp"),
    }
    full = facts or {**HEAD_FACTS, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCAB}
    return Published(DrafterKind.EAGLE3, full, shapes, features=options.pop("features", (2, 4, 5)), arithmetic=options)


def specforge() -> Published:
    facts = {
        **HEAD_FACTS,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 6], "use_aux_hidden_state": True},
    }
    return eagle3(facts=facts, features=(1, 4, 7))


def speculators() -> Published:
    facts = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.1.0",
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 7],
        "transformer_layer_config": HEAD_FACTS,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "target"},
        },
    }
    plain = eagle3("layers.0", facts, features=(1, 4, 7), norm_before_residual=True, own_embeddings=True)
    return Published(
        plain.kind,
        plain.facts,
        {**plain.shapes, "embed_tokens.weight": (VOCAB, HIDDEN)},
        features=plain.features,
        arithmetic=plain.arithmetic,
    )


def mimo(num_layers: int, kind: DrafterKind = DrafterKind.MULTI_LAYER_EAGLE) -> Published:
    shapes: dict[str, tuple[int, ...]] = {
        "model.norm.weight": (HIDDEN,),
        "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
    }
    for layer in range(num_layers):
        prefix = f"model.mtp_layers.{layer}"
        shapes |= (
            attention(prefix, bias=True) | mlp(f"{prefix}.mlp") | {f"{prefix}.input_proj.weight": (HIDDEN, 2 * HIDDEN)}
        )
        shapes |= norms(
            *(f"{prefix}.{norm}_layernorm" for norm in ("token", "hidden", "final", "input", "post_attention"))
        )
    facts = {**TARGET_FACTS, "model_type": "mimo", "num_nextn_predict_layers": num_layers}
    return Published(kind, facts, shapes, inside_target=True)


def deepseek(num_layers: int, kind: DrafterKind = DrafterKind.MULTI_LAYER_EAGLE, experts: int = 4) -> Published:
    """Behind the target's layers; multi-head latent attention, and experts."""
    nope, rope, value, rank, inner = 8, 4, 6, 16, 16
    facts = {
        **TARGET_FACTS,
        "model_type": "deepseek_v3",
        "num_key_value_heads": HEADS,
        "head_dim": rope,
        "num_nextn_predict_layers": num_layers,
        "q_lora_rank": rank,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": inner,
        "first_k_dense_replace": 3,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.norm.weight": (HIDDEN,),
        "model.layers.7.mlp.up_proj.weight": (INNER, HIDDEN),
    }
    for layer in range(LAYERS, LAYERS + num_layers):
        prefix = f"model.layers.{layer}"
        shapes |= norms(*(f"{prefix}.{norm}" for norm in ("enorm", "hnorm", "shared_head.norm")))
        shapes |= norms(f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
        shapes |= {
            f"{prefix}.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
            f"{prefix}.embed_tokens.weight": (VOCAB, HIDDEN),
            f"{prefix}.shared_head.head.weight": (VOCAB, HIDDEN),
            f"{prefix}.self_attn.q_a_proj.weight": (rank, HIDDEN),
            f"{prefix}.self_attn.q_a_layernorm.weight": (rank,),
            f"{prefix}.self_attn.q_b_proj.weight": (HEADS * (nope + rope), rank),
            f"{prefix}.self_attn.kv_a_proj_with_mqa.weight": (rank + rope, HIDDEN),
            f"{prefix}.self_attn.kv_a_layernorm.weight": (rank,),
            f"{prefix}.self_attn.kv_b_proj.weight": (HEADS * (nope + value), rank),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * value),
            f"{prefix}.mlp.gate.weight": (experts, HIDDEN),
            f"{prefix}.mlp.gate.e_score_correction_bias": (experts,),
        }
        shapes |= mlp(f"{prefix}.mlp.shared_experts", inner)
        for expert in range(experts):
            shapes |= mlp(f"{prefix}.mlp.experts.{expert}", inner)
    return Published(kind, facts, shapes, inside_target=True)


EVERYBODY: dict[str, Published] = {
    "eagle": eagle(),
    "eagle, no fc.bias": eagle(bias=False),
    "eagle of a qwen2": eagle(qkv_bias=True),
    "eagle3": eagle3(),
    "eagle3, specforge": specforge(),
    "eagle3, speculators": speculators(),
    "mimo": mimo(2),
    "mimo, one layer as eagle": mimo(1, DrafterKind.EAGLE),
    "deepseek": deepseek(2),
    "deepseek, one layer as eagle": deepseek(1, DrafterKind.EAGLE),
}


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if name == "d2t":
        return drafted_ids() - torch.arange(DRAFT_VOCAB)
    if name == "t2d":
        return torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, drafted_ids(), True)
    if len(shape) == 1 and "bias" not in name:
        return 1 + 0.3 * torch.randn(shape, generator=generator)
    return 0.3 * torch.randn(shape, generator=generator)  # large weights make every token of the context matter


def drafted_ids() -> Tensor:
    """The target's ids of the tokens that a reduced vocabulary has."""
    return (torch.arange(DRAFT_VOCAB) * 7 + 3).remainder(VOCAB).sort().values


def write(folder: Path, facts: dict[str, Any], tensors: dict[str, Tensor], form: str = "single") -> Path:
    """As one file, in two shards with an index, or as torch writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(facts))
    if form == "single":
        save_file(tensors, folder / "model.safetensors")
    elif form == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        names = sorted(tensors)
        files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, held in files.items():
            save_file({name: tensors[name] for name in held}, folder / file)
        weight_map = {name: file for file, held in files.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_target(folder: Path, *, tied: bool = False) -> Path:
    """A target of which nothing but the ends is there: a head has no business with the rest."""
    shapes = {name: shape for name, shape in TARGET_SHAPES.items() if not (tied and name == "lm_head.weight")}
    tensors = {name: random_tensor(name, shape, 1000 + len(name)) for name, shape in shapes.items()}
    return write(folder, {**TARGET_FACTS, "tie_word_embeddings": tied}, tensors)
