"""The keys and values of every token that is being served, in one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


STORED: Final = {"auto": None, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
"""Types that KV can be kept in, by the name of the setting; None is the model's own."""


class KVCache:
    """`data` [num_layers, 2 (key, value), num_slots, kv_heads, head_dim].

    Zeroed at first: attention weighs masked slots with 0, and 0 times whatever was in fresh memory must not be NaN.
    """

    def __init__(
        self,
        geometry: Geometry,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        stored: torch.dtype | None = None,
    ) -> None:
        """`stored`: keys and values are kept as this type of 8 bits, the largest that it has standing for any larger; None: as `dtype`."""
        shape = (geometry.num_layers, 2, num_slots, geometry.kv_heads, geometry.head_dim)
        self.dtype: Final = dtype
        """What attention computes in."""
        self.data: Final = torch.zeros(shape, dtype=stored or dtype, device=device)
        self.raw: Final = self.data.view(torch.uint8) if stored else self.data
        """`data`, as bytes where its type has 8 bits: not every device moves those types about, and bytes it does."""
        self._layers = self.raw.unbind()
        # By layer, [num_slots, kv_heads, head_dim] each.
        self._keys, self._values = self.raw[:, 0].unbind(), self.raw[:, 1].unbind()

    @property
    def num_slots(self) -> int:
        """Tokens that fit."""
        return self.data.shape[2]

    @property
    def in_place(self) -> bool:
        """Whether it is kept in the type that attention computes in, so that nothing of it has to be copied to be read."""
        return self.raw is self.data

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the cache takes."""
        return self.data.nbytes

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] of one layer at slots [T]."""
        self._keys[layer].index_copy_(0, slots, self._as_stored(key))
        self._values[layer].index_copy_(0, slots, self._as_stored(value))

    def read(self, layer: int, slots: Tensor | slice) -> Tensor:
        """Keys and values of one layer at slots [n] -> [2, n, kv_heads, head_dim] in `dtype`. A slice of that type is no copy."""
        pair = self._layers[layer]
        seen = pair[:, slots] if isinstance(slots, slice) else pair.index_select(1, slots)
        return seen if self.in_place else seen.view(self.data.dtype).to(self.dtype)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots source [n] to slots target [n] in every layer. The two may overlap: all is read before anything is written."""
        if len(source):
            self.raw.index_copy_(2, target, self.raw.index_select(2, source))

    def _as_stored(self, numbers: Tensor) -> Tensor:
        if self.in_place:
            return numbers
        limit = torch.finfo(self.data.dtype).max
        return numbers.clamp(-limit, limit).to(self.data.dtype).view(torch.uint8)
