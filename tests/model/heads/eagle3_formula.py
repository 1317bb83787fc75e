"""EAGLE-3 in every layout, written out from its formula in plain torch, straight from published tensors, without transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

Tensors = dict[str, Tensor]


class Formula:
    """One head. facts: its config.json. embeddings [V, H]. lm_head [draft V, H]."""

    def __init__(self, facts: dict[str, Any], tensors: Tensors, embeddings: Tensor) -> None:
        self.facts = facts
        self.flags = {**facts, **facts.get("eagle_config", {})}
        self.tensors = tensors
        self.embeddings = embeddings
        self.first = "midlayer" if "midlayer.hidden_norm.weight" in tensors else "layers.0"
        self.mask_token = facts.get("pard_token")

    def logits(self, tokens: Sequence[int], features: Tensor) -> list[Tensor]:
        """Logits behind each of some tokens. features [n, states x width] are those in front of the first n of them."""
        states = list(self.fused(features))
        made: list[Tensor] = []
        inputs = [self.embeddings[token] for token in tokens]
        for row in range(len(tokens)):
            if row >= len(features) and self.mask_token is not None:
                inputs[row] = self.embeddings[self.mask_token]
            hidden = self._hidden(torch.stack(inputs[: row + 1]), torch.stack(states[: row + 1]))
            normed = self._normed("norm.weight", hidden)
            made.append(linear(normed, self.tensors["lm_head.weight"]) * self.flags.get("logit_scale", 1.0))
            if row + 1 >= len(features):
                own = normed if self.flags.get("norm_output") else hidden
                states.append(own if self.mask_token is None else self.fused(self.tensors["mask_hidden"].reshape(-1)))
        return made

    def fused(self, features: Tensor) -> Tensor:
        """[..., states x width] -> [..., H]"""
        if self.flags.get("norm_before_fc"):
            features = self._normed("input_norm.weight", features)
        if self.flags.get("fc_norm"):
            norms = [name for name in self.tensors if name.startswith("fc_norm.")]
            parts = features.chunk(len(norms), -1)
            features = torch.cat([self._normed(f"fc_norm.{i}.weight", part) for i, part in enumerate(parts)], -1)
        return linear(features, self.tensors["fc.weight"], self.tensors.get("fc.bias"))

    def _hidden(self, embedded: Tensor, states: Tensor) -> Tensor:
        """What the last of some tokens leaves: embedded, states [n, H] -> [H]"""
        normed = self._normed(f"{self.first}.hidden_norm.weight", states)
        residual = normed if self.flags.get("norm_before_residual") else states
        both = torch.cat([self._normed(f"{self.first}.input_layernorm.weight", embedded), normed], -1)
        hidden = self._behind_attention(self.first, 0, residual, both)
        for block in range(1, self.facts["num_hidden_layers"]):
            normed = self._normed(f"layers.{block}.input_layernorm.weight", hidden)
            hidden = self._behind_attention(f"layers.{block}", block, hidden, normed)
        return hidden[-1]

    def _behind_attention(self, prefix: str, block: int, residual: Tensor, inputs: Tensor) -> Tensor:
        attention = self._latent if "kv_lora_rank" in self.facts else self._attention
        hidden = residual + attention(f"{prefix}.self_attn", block, inputs)
        normed = self._normed(f"{prefix}.post_attention_layernorm.weight", hidden)
        gate, up = (linear(normed, self.tensors[f"{prefix}.mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        return hidden + linear(silu(gate) * up, self.tensors[f"{prefix}.mlp.down_proj.weight"])

    def _attention(self, prefix: str, block: int, inputs: Tensor) -> Tensor:
        size, count = self.facts["head_dim"], len(inputs)
        query, key, value = (
            linear(inputs, self.tensors[f"{prefix}.{name}_proj.weight"]).view(count, -1, size).transpose(0, 1)
            for name in ("q", "k", "v")
        )
        if f"{prefix}.q_norm.weight" in self.tensors:
            query, key = self._normed(f"{prefix}.q_norm.weight", query), self._normed(f"{prefix}.k_norm.weight", key)
        cos, sin = self._angles(size, count)
        query, key = (_halves_turned(each, cos, sin) for each in (query, key))
        repeated = len(query) // len(key)
        key, value = key.repeat_interleave(repeated, 0), value.repeat_interleave(repeated, 0)
        kinds = self.facts.get("layer_types")
        window = self.facts["sliding_window"] if kinds and kinds[block] == "sliding_attention" else None
        mixed = _attended(query, key, value, size**-0.5, window)
        return linear(mixed.transpose(0, 1).reshape(count, -1), self.tensors[f"{prefix}.o_proj.weight"])

    def _latent(self, prefix: str, block: int, inputs: Tensor) -> Tensor:
        rank, plain, turned = (self.facts[name] for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"))
        value_size, count = self.facts["v_head_dim"], len(inputs)
        if self.facts["q_lora_rank"] is None:
            query = linear(inputs, self.tensors[f"{prefix}.q_proj.weight"])
        else:
            lean = self._normed(
                f"{prefix}.q_a_layernorm.weight", linear(inputs, self.tensors[f"{prefix}.q_a_proj.weight"])
            )
            query = linear(lean, self.tensors[f"{prefix}.q_b_proj.weight"])
        latent, key_turned = linear(inputs, self.tensors[f"{prefix}.kv_a_proj_with_mqa.weight"]).split(
            [rank, turned], -1
        )
        pairs = linear(
            self._normed(f"{prefix}.kv_a_layernorm.weight", latent), self.tensors[f"{prefix}.kv_b_proj.weight"]
        )
        key, value = pairs.view(count, -1, plain + value_size).transpose(0, 1).split([plain, value_size], -1)
        query = query.view(count, -1, plain + turned).transpose(0, 1)
        cos, sin = self._angles(turned, count)
        query = torch.cat([query[..., :plain], _pairs_turned(query[..., plain:], cos, sin)], -1)
        key = torch.cat([key, _pairs_turned(key_turned, cos, sin).expand(len(key), -1, -1)], -1)
        mixed = _attended(query, key, value, (plain + turned) ** -0.5, None)
        return linear(mixed.transpose(0, 1).reshape(count, -1), self.tensors[f"{prefix}.o_proj.weight"])

    def _angles(self, size: int, count: int) -> tuple[Tensor, Tensor]:
        frequencies = self.facts.get("rope_theta", 10000.0) ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(count)[:, None] * frequencies
        return angles.cos(), angles.sin()

    def _normed(self, name: str, numbers: Tensor) -> Tensor:
        scale = (numbers.square().mean(-1, keepdim=True) + self.facts["rms_norm_eps"]).rsqrt()
        return numbers * scale * self.tensors[name]


def _halves_turned(numbers: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rope over number i and i + n/2."""
    low, high = numbers.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def _pairs_turned(numbers: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rope over number 2 i and 2 i + 1."""
    even, odd = numbers[..., ::2], numbers[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def _attended(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    """Causal attention of heads [heads, n, size], to the last `window` tokens."""
    count = query.shape[1]
    ahead = torch.arange(count)[:, None] - torch.arange(count)
    seen = (ahead >= 0) & (ahead < (window or count))
    scores = (query @ key.mT * scale).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ value
