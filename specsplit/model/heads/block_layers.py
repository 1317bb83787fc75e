"""The decoder layers of block drafters. The context does not go through them: it is keys and values that each layer makes of features.

T   tokens of all blocks, end to end      W   width of a state
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model.attention.interface import tokens_first
from specsplit.model.heads.block_config import ConvConfig
from specsplit.model.heads.layer import Layer

_PARTS: Final = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


class DynamicConv(nn.Module):
    """DFlash 2: convolutions before and behind attention, or an MLP, over the tokens of a block, whose kernels depend on the token."""

    def __init__(self, width: int, conv: ConvConfig) -> None:
        super().__init__()
        self.conv: Final = conv
        self._groups: Final = width // conv.group_size
        identity = torch.zeros(2, conv.taps, width)
        identity[:, 0] = 1.0
        self.base_kernel = nn.Parameter(identity)
        self.kernel_projection = nn.Linear(width, 2 * conv.taps * self._groups, bias=False)

    def kernels(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """states [T, W] -> the kernels [T, taps, W] of the convolution before, and of the one behind."""
        own = self.kernel_projection(states).unflatten(-1, (2, self.conv.taps, self._groups))
        before, behind = (own.repeat_interleave(self.conv.group_size, dim=-1) + self.base_kernel).unbind(1)
        return before, behind

    @staticmethod
    def convolved(states: Tensor, kernels: Tensor, length: int) -> Tensor:
        """states [T, W], in blocks of `length` tokens, and kernels [T, taps, W] -> [T, W]: tap k reads the token k before, in the block."""
        blocks, by_tap = states.unflatten(0, (-1, length)), kernels.unflatten(0, (-1, length)).unbind(2)
        taken = [pad(blocks, (0, 0, tap, 0))[:, :length] * kernel for tap, kernel in enumerate(by_tap)]
        return torch.stack(taken).sum(0).flatten(0, 1)


class BlockLayer(nn.Module):
    """One decoder layer, made of the parts of transformers'."""

    def __init__(self, block: nn.Module, width: int, conv: ConvConfig | None) -> None:
        super().__init__()
        parts = dict(block.named_children())
        if set(parts) != set(_PARTS):
            raise LoadError(
                f"{type(block).__name__} cannot be a layer of a block drafter: expected {', '.join(_PARTS)}"
            )
        self.input_layernorm: nn.Module = parts["input_layernorm"]
        self.self_attn: nn.Module = parts["self_attn"]
        self.post_attention_layernorm: nn.Module = parts["post_attention_layernorm"]
        self.mlp: nn.Module = parts["mlp"]
        self.attention_conv = None if conv is None else DynamicConv(width, conv)
        self.mlp_conv = None if conv is None else DynamicConv(width, conv)

    def forward(self, states: Tensor, length: int, **attention: Any) -> Tensor:
        """states [T, W] of blocks of `length` tokens each -> [T, W]"""
        normed = self.input_layernorm(states)
        states = states + _around(
            self.attention_conv,
            normed,
            length,
            lambda each: self.self_attn(hidden_states=each[None], **attention)[0][0],
        )
        normed = self.post_attention_layernorm(states)
        return states + _around(self.mlp_conv, normed, length, self.mlp)


def _around(conv: DynamicConv | None, states: Tensor, length: int, part: Any) -> Tensor:
    if conv is None:
        return part(states)
    before, behind = conv.kernels(states)
    return conv.convolved(part(conv.convolved(states, before, length)), behind, length)


class BlockLayers(nn.Module):
    """All of them, with the rotary embedding that they share, and the last norm."""

    def __init__(self, config: PretrainedConfig, count: int, conv: ConvConfig | None, attn_implementation: str) -> None:
        super().__init__()
        layer = Layer(config, attn_implementation, count)
        self.new_norm: Final = layer.new_norm
        self.config: Final = layer.config
        blocks = [layer.block, *layer.further]
        self.layers = nn.ModuleList(BlockLayer(block, config.hidden_size, conv) for block in blocks)
        self.norm = layer.new_norm()
        assert layer.rotary_emb is not None
        self.rotary_emb: nn.Module = layer.rotary_emb

    @property
    def each(self) -> Sequence[BlockLayer]:
        """The layers, in order."""
        return cast("Sequence[BlockLayer]", self.layers)

    def forward(self, states: Tensor, positions: Tensor, length: int, forward_batch: Any) -> Tensor:
        """states [T, W] of blocks of `length` tokens each, and their positions [T] -> [T, W], normed"""
        attention = self._attention(states, positions, forward_batch)
        for layer in self.each:
            states = layer(states, length, **attention)
        return self.norm(states)

    def keys_values(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """context [T, W] of committed tokens at positions [T] -> their keys and values [T, kv_heads, head_dim], by layer."""
        noted = _NotedKeys()
        attention = self._attention(context, positions, noted)
        for layer in self.each:
            layer.self_attn(hidden_states=context[None], **attention)
        return noted.found

    def _attention(self, states: Tensor, positions: Tensor, forward_batch: Any) -> dict[str, Any]:
        rotated = self.rotary_emb(states[None], positions[None])
        return {"position_embeddings": rotated, "attention_mask": None, "forward_batch": forward_batch}


class _NotedKeys:
    """A ForwardBatch that keeps the keys and values that every layer hands it, and attends to nothing."""

    def __init__(self) -> None:
        self.found: list[tuple[Tensor, Tensor]] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        self.found.append((tokens_first(key), tokens_first(value)))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])
