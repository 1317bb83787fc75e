"""EAGLE-3 checkpoints in layouts that people publish, one for each thing that a head may do otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.model.heads.published import (
    DRAFT_VOCAB,
    HEAD_DIM,
    HEAD_FACTS,
    HEADS,
    HIDDEN,
    VOCAB,
    attention,
    mlp,
    norms,
    random_tensor,
)

WIDE = 48
"""Hidden size of a target that is wider than its head."""
MODELOPT: dict[str, Any] = {
    "use_aux_hidden_state": True,
    "eagle_aux_hidden_state_layer_ids": [0, 3, 6],
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": None,
}
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_key_value_heads": HEADS,
    "head_dim": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "rms_norm_eps": 1e-6,
}
KIMI: dict[str, Any] = {
    **LATENT,
    "model_type": "kimi_k2",
    "q_lora_rank": 16,
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "is_decoder": False,
    "moe_intermediate_size": 16,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 0,
    "pruned_heads": {},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "topk_group": 1,
    "topk_method": "noaux_tc",
}
"""What ModelOpt writes for Kimi K2, experts that its head has not among it."""
WINDOWS: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "use_sliding_window": True,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"],
}


@dataclass(frozen=True)
class Layout3:
    """What is in the folder of an EAGLE-3 head, and what it is read as."""

    facts: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    features: tuple[int, ...] = (2, 4, 5)
    target_hidden: int = HIDDEN

    def tensors(self) -> dict[str, Tensor]:
        return {
            name: random_tensor(name, shape, seed) for seed, (name, shape) in enumerate(sorted(self.shapes.items()))
        }


def layout3(
    facts: dict[str, Any],
    shapes: dict[str, tuple[int, ...]] | None = None,
    *,
    first: str = "midlayer",
    features: tuple[int, ...] = (2, 4, 5),
    target_hidden: int = HIDDEN,
) -> Layout3:
    """A head with these settings and tensors beside the usual ones. first: how the first layer is called."""
    said = {**HEAD_FACTS, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCAB, **facts}
    blocks = [first, *(f"layers.{block}" for block in range(1, said["num_hidden_layers"]))]
    made: dict[str, tuple[int, ...]] = {
        "d2t": (DRAFT_VOCAB,),
        "fc.weight": (HIDDEN, len(features) * target_hidden),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        **norms("norm", f"{first}.hidden_norm"),
    }
    for number, block in enumerate(blocks):
        wide = 2 if number == 0 else 1
        made |= _latent(said, block, wide) if "kv_lora_rank" in said else attention(block, wide=wide)
        made |= norms(f"{block}.input_layernorm", f"{block}.post_attention_layernorm") | mlp(f"{block}.mlp")
        if said["model_type"] == "qwen3":
            made |= {f"{block}.self_attn.{name}_norm.weight": (HEAD_DIM,) for name in ("q", "k")}
    return Layout3(said, {**made, **(shapes or {})}, features, target_hidden)


def _latent(facts: dict[str, Any], block: str, wide: int) -> dict[str, tuple[int, ...]]:
    rank, plain, turned = facts["kv_lora_rank"], facts["qk_nope_head_dim"], facts["qk_rope_head_dim"]
    prefix, lean = f"{block}.self_attn", facts["q_lora_rank"]
    queries: dict[str, tuple[int, ...]] = {
        f"{prefix}.q_a_proj.weight": (lean or 0, wide * HIDDEN),
        f"{prefix}.q_a_layernorm.weight": (lean or 0,),
        f"{prefix}.q_b_proj.weight": (HEADS * (plain + turned), lean or 0),
    }
    return {
        **(queries if lean else {f"{prefix}.q_proj.weight": (HEADS * (plain + turned), wide * HIDDEN)}),
        f"{prefix}.kv_a_proj_with_mqa.weight": (rank + turned, wide * HIDDEN),
        f"{prefix}.kv_a_layernorm.weight": (rank,),
        f"{prefix}.kv_b_proj.weight": (HEADS * (plain + facts["v_head_dim"]), rank),
        f"{prefix}.o_proj.weight": (HIDDEN, HEADS * facts["v_head_dim"]),
    }


LAYOUTS3: dict[str, Layout3] = {
    "modelopt": layout3({"eagle_config": MODELOPT}, {"fc.bias": (HIDDEN,)}, first="layers.0", features=(1, 4, 7)),
    "modelopt, norm_before_fc": layout3(
        {"eagle_config": {**MODELOPT, "norm_before_fc": True}},
        {"input_norm.weight": (3 * HIDDEN,)},
        first="layers.0",
        features=(1, 4, 7),
    ),
    "norms": layout3(
        {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
        {f"fc_norm.{state}.weight": (HIDDEN,) for state in range(3)},
    ),
    "logit_scale": layout3({"logit_scale": 0.0625}),
    "latents": layout3({**LATENT, "q_lora_rank": 16}),
    "latents, two layers, plain queries": layout3(
        {**LATENT, "q_lora_rank": None, "num_hidden_layers": 2, "norm_output": True}, first="layers.0"
    ),
    "modelopt, latents": layout3({**KIMI, "eagle_config": MODELOPT}, first="layers.0", features=(1, 4, 7)),
    "windows": layout3(WINDOWS),
    "a wider target": layout3(
        {
            "target_hidden_size": WIDE,
            "num_aux_hidden_states": 4,
            "eagle_aux_hidden_state_layer_ids": [0, 2, 5, 8],
            "fc_norm": True,
        },
        {"embed_tokens.weight": (VOCAB, HIDDEN), **{f"fc_norm.{state}.weight": (WIDE,) for state in range(4)}},
        features=(0, 2, 5, 8),
        target_hidden=WIDE,
    ),
    "p-eagle": layout3(
        {"pard_token": 11, "parallel_drafting": True, "norm_before_fc": True},
        {"mask_hidden": (1, 1, 3 * HIDDEN), "input_norm.weight": (3 * HIDDEN,)},
    ),
}


def features_for(layout: Layout3, count: int) -> Tensor:
    """Hidden states of so many tokens."""
    return torch.randn(count, len(layout.features) * layout.target_hidden, generator=torch.Generator().manual_seed(5))
