"""The keys and values of every token that is being served, in one tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """The attention shape of a model, the same in all of its layers."""

    num_layers: int
    num_heads: int
    """Query heads H; a multiple of kv_heads."""
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share one KV head; head h uses KV head h // group."""
        return self.num_heads // self.kv_heads


class KVCache:
    """`data` [num_layers, 2 (key, value), num_slots, kv_heads, head_dim].

    Zeroed at first: attention weighs masked slots with 0, and 0 times whatever was in fresh memory must not be NaN.
    """

    def __init__(self, geometry: Geometry, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (geometry.num_layers, 2, num_slots, geometry.kv_heads, geometry.head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = self.data.unbind()
        """`data` by layer, [2, num_slots, kv_heads, head_dim] each."""
        # By layer, [num_slots, kv_heads, head_dim] each.
        self._keys, self._values = self.data[:, 0].unbind(), self.data[:, 1].unbind()

    @property
    def num_slots(self) -> int:
        """Tokens that fit."""
        return self.data.shape[2]

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.data.nbytes

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] of one layer at slots [T]."""
        self._keys[layer].index_copy_(0, slots, key)
        self._values[layer].index_copy_(0, slots, value)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots source [n] to slots target [n] in every layer. The two may overlap: all is read before anything is written."""
        if len(source):
            self.data.index_copy_(2, target, self.data.index_select(2, source))
