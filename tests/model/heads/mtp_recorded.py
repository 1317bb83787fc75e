"""Tiny targets with MTP layers that vLLM runs on a CPU, whose outputs are in tests/data/mtp; `scripts/recorded_mtp` made them.

Sizes are those that vLLM's attention has on a CPU: heads of 32 numbers, and latents of 256 with 64 that are rotated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3

from specsplit.values import DrafterKind
from tests.model.heads.mtp_published import EXPERTS, GROUPS, LATENT, MOE, TARGETS, WINDOW, MtpTarget
from tests.model.heads.published import HIDDEN, mimo, random_tensor

Tensors = dict[str, Tensor]
WIDTH = 32
"""Numbers of a head."""
LATENTS: dict[str, Any] = {**LATENT, "kv_lora_rank": 256, "qk_rope_head_dim": 64, "head_dim": 64}
COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}
"""Ends of the names of tensors that vLLM reads in the place of the target's."""


@dataclass(frozen=True)
class Recorded:
    """One family's folder, and what vLLM's copy of it has otherwise."""

    facts: dict[str, Any]
    """The whole config.json."""
    tensors: Tensors
    first: int = 0
    """The position of the first token in vLLM, which has zeros for the embedding at 0 in some families where this project has none."""
    facts_there: dict[str, Any] = field(default_factory=dict)
    tensors_there: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor
    kind: DrafterKind = DrafterKind.MULTI_LAYER_EAGLE
    """The kind of drafter whose next step reads what vLLM's does."""


def _recorded(target: MtpTarget, architecture: str, **options: Any) -> Recorded:
    config = target.config_json
    tensors = target.tensors()
    for name in tensors:
        whole = next((whole for end, whole in COPIES.items() if name.endswith(f".{end}") and name != whole), None)
        tensors[name] = tensors[name] if whole is None else tensors[whole].clone()
    return Recorded({**config, "architectures": [architecture]}, tensors, **options)


def _of(name: str, architecture: str, facts: Mapping[str, Any] | None = None, **options: Any) -> Recorded:
    target = TARGETS[name]
    return _recorded(
        replace(target, facts={**target.facts, "head_dim": WIDTH, **(facts or {})}), architecture, **options
    )


def _deepseek_v3() -> Recorded:
    facts = {
        "model_type": "deepseek_v3",
        **MOE,
        **GROUPS,
        **LATENTS,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "rms_norm_eps": 1e-6,
        "num_nextn_predict_layers": 1,
    }
    target = replace(
        TARGETS["deepseek_v32"],
        facts=facts,
        layer=lambda config: deepseek_v3.DeepseekV3DecoderLayer(config, 0),
        rotary=deepseek_v3.DeepseekV3RotaryEmbedding,
    )
    return _recorded(target, "DeepseekV3ForCausalLM", first=1, kind=DrafterKind.EAGLE)


def _mimo() -> Recorded:
    """One head, since vLLM's layer has heads as wide as its states all together."""
    published = mimo(1)
    shapes = {
        name: (HIDDEN, *shape[1:]) if ".self_attn." in name else shape for name, shape in published.shapes.items()
    }
    tensors = replace(published, shapes=shapes).tensors()
    facts = {**published.facts, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": WIDTH}
    return Recorded(
        {**facts, "architectures": ["MiMoForCausalLM"]}, tensors, first=1, facts_there={"model_type": "qwen2"}
    )


def _ernie() -> Recorded:
    """vLLM rotates halves of a head, and this project pairs: the numbers of its heads stand in that order."""

    def halves(name: str, tensor: Tensor) -> Tensor:
        if not name.endswith(("q_proj.weight", "k_proj.weight")):
            return tensor
        return tensor.unflatten(0, (-1, WIDTH // 2, 2)).transpose(1, 2).flatten(0, 2).contiguous()

    return _of("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", tensors_there=halves)


def _mimo_v2() -> Recorded:
    """To vLLM `sliding_window_size` are the tokens of a window with the own one, to this project and transformers those before it."""
    widths: dict[str, Any] = dict.fromkeys(("head_dim", "v_head_dim", "swa_head_dim", "swa_v_head_dim"), WIDTH)
    return _of("mimo_v2_flash", "MiMoV2FlashForCausalLM", widths, facts_there={"sliding_window_size": WINDOW})


RECORDED: Mapping[str, Callable[[], Recorded]] = {
    "mimo": _mimo,
    "deepseek_v3": _deepseek_v3,
    "glm4_moe": lambda: _of("glm4_moe", "Glm4MoeForCausalLM", first=1),
    "mimo_v2_flash": _mimo_v2,
    "qwen3_next": lambda: _of("qwen3_next", "Qwen3NextForCausalLM"),
    "exaone_moe": lambda: _of("exaone_moe", "ExaoneMoEForCausalLM"),
    "exaone_moe-window": lambda: _of("exaone_moe, a window", "ExaoneMoEForCausalLM"),
    "ernie4_5_moe": _ernie,
    "hy_v3": lambda: _of(
        "hy_v3",
        "HYV3ForCausalLM",
        {
            "first_k_dense_replace": 1,
            "expert_hidden_dim": MOE["moe_intermediate_size"],
            "route_norm": True,
            "qk_norm": True,
        },
    ),
}
TOKENS = 9


def tokens_and_states() -> tuple[Tensor, Tensor]:
    """What the layers are given: tokens [TOKENS], and a state of the target for each, [TOKENS, HIDDEN]."""
    return torch.arange(3, 3 + 7 * TOKENS, 7), random_tensor("states", (TOKENS, HIDDEN), 1)
