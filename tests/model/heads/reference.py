"""Heads put together of transformers' own decoder layers, with plain attention, straight from published tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import DeepseekV3Config, LlamaConfig, PretrainedConfig, Qwen2Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RotaryEmbedding
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding

from specsplit.values import DrafterKind
from tests.model.heads.published import DRAFT_VOCAB, HIDDEN, VOCAB, Published

EPS = 1e-5
Tensors = dict[str, Tensor]
Outcome = tuple[Tensor, Tensor]
"""Logits [V] over the target's vocabulary and the next state of a chain's last row."""
Reference = Callable[[int, Tensor, Tensor, Tensor], Outcome]
"""(step, tokens [n], states [n, width], positions [n]) of a chain of rows."""


@torch.inference_mode()
def last_of_chain(published: Published, tensors: Tensors, target: Tensors) -> Reference:
    if published.kind is DrafterKind.EAGLE3:
        return _eagle3(published, tensors, target)
    if not published.inside_target:
        return _eagle(published, tensors, target)
    return (
        _deepseek(published, tensors, target) if "q_lora_rank" in published.facts else _mimo(published, tensors, target)
    )


def _eagle(published: Published, tensors: Tensors, target: Tensors) -> Reference:
    qwen = published.facts["qkv_bias"]
    config = _config(Qwen2Config if qwen else LlamaConfig, published.facts)
    layer: Any = (Qwen2DecoderLayer if qwen else LlamaDecoderLayer)(config, 0)
    layer.input_layernorm = nn.Identity()
    layer.load_state_dict(_below("layers.0.", tensors))
    rotary = (Qwen2RotaryEmbedding if qwen else LlamaRotaryEmbedding)(config)

    def run(step: int, tokens: Tensor, states: Tensor, positions: Tensor) -> Outcome:
        embedded = target["model.embed_tokens.weight"][tokens]
        fused = linear(torch.cat([embedded, states], -1), tensors["fc.weight"], tensors.get("fc.bias"))
        hidden = _last(layer, rotary, fused, positions)
        return linear(hidden, target["lm_head.weight"]), hidden

    return run


def _eagle3(published: Published, tensors: Tensors, target: Tensors) -> Reference:
    facts = published.facts.get("transformer_layer_config", published.facts)
    block = "layers.0." if "layers.0.hidden_norm.weight" in tensors else "midlayer."
    layer = _Eagle3Layer(_config(LlamaConfig, facts), published.arithmetic.get("norm_before_residual", False))
    layer.load_state_dict(_below(block, tensors))
    rotary, norm = LlamaRotaryEmbedding(_config(LlamaConfig, facts)), LlamaRMSNorm(HIDDEN, EPS)
    norm.load_state_dict(_below("norm.", tensors))
    embeddings = (
        tensors["embed_tokens.weight"]
        if published.arithmetic.get("own_embeddings")
        else target["model.embed_tokens.weight"]
    )

    def run(step: int, tokens: Tensor, states: Tensor, positions: Tensor) -> Outcome:
        hidden = _last(layer, rotary, torch.cat([embeddings[tokens], states], -1), positions)
        drafted = linear(norm(hidden), tensors["lm_head.weight"])
        logits = torch.full((VOCAB,), -torch.inf)
        for index in range(DRAFT_VOCAB):
            logits[index + tensors["d2t"][index]] = drafted[index]
        return logits, hidden

    return run


class _Eagle3Layer(nn.Module):
    """EAGLE's `LlamaDecoderLayeremb` of transformers' parts."""

    def __init__(self, config: Any, norm_before_residual: bool) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(2 * HIDDEN, narrow.out_features, bias=False))
        self.mlp = LlamaMLP(config)
        self.hidden_norm = LlamaRMSNorm(HIDDEN, EPS)
        self.input_layernorm = LlamaRMSNorm(HIDDEN, EPS)
        self.post_attention_layernorm = LlamaRMSNorm(HIDDEN, EPS)
        self.norm_before_residual = norm_before_residual

    def forward(self, both: Tensor, **attention: Any) -> Tensor:
        embedding, state = both[..., :HIDDEN], both[..., HIDDEN:]
        normed = self.hidden_norm(state)
        hidden = (normed if self.norm_before_residual else state) + self.self_attn(
            torch.cat([self.input_layernorm(embedding), normed], -1), **attention
        )[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def _mimo(published: Published, tensors: Tensors, target: Tensors) -> Reference:
    config = _config(Qwen2Config, published.facts)
    rotary = Qwen2RotaryEmbedding(config)

    def run(step: int, tokens: Tensor, states: Tensor, positions: Tensor) -> Outcome:
        mine = _below(f"model.mtp_layers.{step}.", tensors)
        embedded = target["model.embed_tokens.weight"][tokens]
        pair = [
            _normed(mine.pop("hidden_layernorm.weight"), states),
            _normed(mine.pop("token_layernorm.weight"), embedded),
        ]
        projected = linear(torch.cat(pair, -1), mine.pop("input_proj.weight"))
        final = mine.pop("final_layernorm.weight")
        layer = Qwen2DecoderLayer(config, 0)
        layer.load_state_dict(mine)
        hidden = _normed(final, _last(layer, rotary, projected, positions))
        return linear(hidden, target["lm_head.weight"]), hidden

    return run


def _deepseek(published: Published, tensors: Tensors, target: Tensors) -> Reference:
    config = _config(DeepseekV3Config, {**published.facts, "first_k_dense_replace": 0})
    rotary = DeepseekV3RotaryEmbedding(config)

    def run(step: int, tokens: Tensor, states: Tensor, positions: Tensor) -> Outcome:
        mine = _below(f"model.layers.{published.facts['num_hidden_layers'] + step}.", tensors)
        embedded = target["model.embed_tokens.weight"][tokens]
        pair = [_normed(mine.pop("enorm.weight"), embedded), _normed(mine.pop("hnorm.weight"), states)]
        projected = linear(torch.cat(pair, -1), mine.pop("eh_proj.weight"))
        final = mine.pop("shared_head.norm.weight")
        del mine["embed_tokens.weight"], mine["shared_head.head.weight"]
        layer = DeepseekV3DecoderLayer(config, 0)
        layer.load_state_dict(_fused_experts(mine, published.facts["n_routed_experts"]))
        hidden = _last(layer, rotary, projected, positions)
        normed = _normed(final, hidden)
        # SGLang's DeepseekModelNextN, which feeds its layer its own states, ends in shared_head.norm.
        return linear(normed, target["lm_head.weight"]), normed if published.kind is DrafterKind.EAGLE else hidden

    return run


def _fused_experts(tensors: Tensors, count: int) -> Tensors:
    """As transformers keeps them: all experts' matrices in one tensor."""
    parts = [
        {name: tensors.pop(f"mlp.experts.{e}.{name}_proj.weight") for name in ("gate", "up", "down")}
        for e in range(count)
    ]
    tensors["mlp.experts.gate_up_proj"] = torch.stack([torch.cat([part["gate"], part["up"]]) for part in parts])
    tensors["mlp.experts.down_proj"] = torch.stack([part["down"] for part in parts])
    return tensors


def _last(layer: nn.Module, rotary: nn.Module, inputs: Tensor, positions: Tensor) -> Tensor:
    """The last output of a layer over a chain: inputs [n, in] -> [hidden]."""
    count = len(inputs)
    mask = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
    where = {"position_ids": positions[None], "position_embeddings": rotary(inputs[None], positions[None])}
    return layer(inputs[None], attention_mask=mask, **where)[0, -1]


def _config(kind: type[PretrainedConfig], facts: dict[str, Any]) -> Any:
    config = kind.from_dict({key: value for key, value in facts.items() if key != "model_type"})
    config._attn_implementation = "eager"  # pyright: ignore[reportPrivateUsage]
    return config


def _normed(weight: Tensor, hidden: Tensor) -> Tensor:
    norm = LlamaRMSNorm(HIDDEN, EPS)
    norm.load_state_dict({"weight": weight})
    return norm(hidden)


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
