"""MTP layers against transformers' own (`generate(use_mtp=True)`), for the families that it has, from the folder of a whole target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig, PretrainedConfig
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from specsplit.model import Row, RowPages
from specsplit.model.heads import HeadRunner, load_head
from specsplit.values import DrafterKind
from tests.model.heads.published import HIDDEN, LAYERS, TARGET_FACTS, VOCAB, random_tensor, write
from tests.support.rounding import assert_same_sums

FACTS: dict[str, Any] = {key: value for key, value in TARGET_FACTS.items() if key != "model_type"} | {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "num_nextn_predict_layers": 1,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "glm4_moe": Glm4MoeConfig(**FACTS),
    "deepseek_v3": DeepseekV3Config(**{**FACTS, **LATENT}),
}


def with_layer(folder: Path, config: PretrainedConfig) -> Path:
    """A target with random weights, and an MTP layer behind its last one."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    last = f"model.layers.{LAYERS - 1}."
    shapes = {
        name.replace(last, f"model.layers.{LAYERS}."): tuple(each.shape)
        for name, each in tensors.items()
        if last in name
    }
    norms = dict.fromkeys(
        (f"model.layers.{LAYERS}.{norm}.weight" for norm in ("enorm", "hnorm", "shared_head.norm")), (HIDDEN,)
    )
    shapes |= {**norms, f"model.layers.{LAYERS}.eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
    tensors |= {name: random_tensor(name, shape, seed) for seed, (name, shape) in enumerate(sorted(shapes.items()))}
    return write(folder, {**config.to_dict(), "num_nextn_predict_layers": 1}, tensors)


def _first_layer(theirs: Any, tokens: Tensor, hidden: Tensor, places: Tensor, cache: MtpCache) -> Tensor:
    """What MtpModel does with its first layer; transformers 5.17 has no `forward_layer`."""
    embedded = theirs.embed_tokens(tokens)
    masks = theirs.create_masks_for_mtp_layer(0, embedded, cache, places)
    rotated = theirs.rotary_emb(embedded, position_ids=places)
    return theirs.layers[0](
        embedded, hidden, position_embeddings=rotated, position_ids=places, past_key_values=cache, **masks
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_on_the_targets_last_hidden_state_the_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    folder = with_layer(tmp_path, CONFIGS[name])
    target: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    target._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{LAYERS}\..*"]  # by which it finds them
    theirs: Any = MtpModel.from_pretrained(target)
    theirs.set_attn_implementation("eager")
    tokens = torch.arange(3, 15)[None] % VOCAB
    with torch.inference_mode():
        hidden = target(tokens, output_hidden_states=True).hidden_states[-1][:, :-1]
        places = torch.arange(1, tokens.shape[1])[None]
        cache = MtpCache(config=target.config.get_mtp_config())
        expected = theirs._project_to_logits(_first_layer(theirs, tokens[:, 1:], hidden, places, cache))[0]
    head = load_head(folder, folder, DrafterKind.MULTI_LAYER_EAGLE)
    runner = HeadRunner(head, 0, 16)
    rows = [Row.chunk(tokens[0, 1:].numpy(), RowPages.alone(runner.pool.allocate(11), 11))]
    found, _ = runner.forward(rows, head.fuse(hidden[0]))
    assert_same_sums(head.logits(0, found), expected)
