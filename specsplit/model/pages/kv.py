"""The keys and values of every token that is being served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specsplit.model.pages.geometry import Geometry

STORED: Final = {"auto": None, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
"""Types that KV can be kept in, by the name of the setting; None is the model's own."""


class _Shape(NamedTuple):
    """What planes of one tensor have in common."""

    in_window: bool
    kv_heads: int
    width: int


class _Plane(NamedTuple):
    """Where the keys, or the values, of one layer are."""

    tensor: int
    number: int


class KVCache:
    """A *plane* [num_slots, kv_heads, width] is the keys, or the values, of one layer. Planes of one shape lie in one tensor.

    Where values lie in the keys of a layer it has one plane. Layers that see a window or a chunk have planes of `window_slots`, where there
    are such slots, in the place of `num_slots`.

    Zeroed at first: attention weighs masked slots with 0, and 0 times whatever was in fresh memory must not be NaN.
    """

    def __init__(
        self,
        geometry: Geometry,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        stored: torch.dtype | None = None,
        window_slots: int = 0,
    ) -> None:
        """`window_slots`: 0: every layer has `num_slots`.

        `stored`: keys and values are kept as this type of 8 bits, the largest that it has standing for any larger; None: as `dtype`.
        """
        self.geometry: Final = geometry
        self.num_slots: Final = num_slots
        """Tokens that fit."""
        self.dtype: Final = dtype
        """What attention computes in."""
        self.device: Final = device
        self.in_window: Final = tuple(window_slots > 0 and layer.span.size is not None for layer in geometry.layers)
        """By layer, whether it has window slots."""
        shapes = [
            _Shape(within, *kept)
            for layer, within in zip(geometry.layers, self.in_window, strict=True)
            for kept in layer.kept
        ]
        order = list(dict.fromkeys(shapes))
        self.tensors: Final = [
            torch.zeros(
                shapes.count(shape),
                window_slots if shape.in_window else num_slots,
                shape.kv_heads,
                shape.width,
                dtype=stored or dtype,
                device=device,
            )
            for shape in order
        ]
        """[planes, slots, kv_heads, width] each, in order of layers, keys before values."""
        self.raw: Final = [each.view(torch.uint8) for each in self.tensors] if stored else self.tensors
        """`tensors`, as bytes where their type has 8 bits: not every device moves those types about, and bytes it does."""
        self._windowed: Final = [shape.in_window for shape in order]
        self._planes: Final = _planes(geometry, shapes)
        apart = [each.unbind() for each in self.raw]
        # By layer: its planes, keys first.
        self._kept = [[apart[tensor][number] for tensor, number in own] for own in self._planes]
        # By layer: [1 or 2, num_slots, kv_heads, width] of what lies side by side, and else two of one plane.
        self._room: dict[tuple[int, torch.Size], Tensor] = {}
        # By keys or values, and shape of a slot, on a CPU: where copies are made of slots that are read.
        self._blocks = [
            (self.raw[own[0].tensor][own[0].number : own[0].number + len(own)],)
            if len({plane.tensor for plane in own}) == 1
            else tuple(plane[None] for plane in planes)
            for own, planes in zip(self._planes, self._kept, strict=True)
        ]

    @property
    def data(self) -> Tensor:
        """[num_layers, 2 (key, value), num_slots, kv_heads, head_dim], where all are of one shape; 1 in the place of 2 where values lie in
        keys. Raises ValueError if layers differ."""
        if len(self.tensors) > 1 or len(counts := {len(own) for own in self._planes}) > 1:
            raise ValueError(f"keys and values are of {len(self.tensors)} shapes: there is no one tensor of them")
        return self.tensors[0].unflatten(0, (-1, *counts))

    def planes(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer where they are, [num_slots, kv_heads, width] each, in the type that they are kept in."""
        keys, *values = (self.tensors[tensor][number] for tensor, number in self._planes[layer])
        return keys, values[0] if values else self._within(layer, keys)

    @property
    def stored(self) -> torch.dtype:
        """What it is kept as."""
        return self.tensors[0].dtype if self.tensors else self.dtype

    @property
    def in_place(self) -> bool:
        """Whether it is kept in the type that attention computes in, so that nothing of it has to be copied to be read."""
        return self.raw is self.tensors

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the cache takes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def takes(self, layer: int, shape: tuple[int, int]) -> bool:
        """Whether keys and values of `shape` (kv_heads, width) of a layer are kept as they come, each in a plane of its own."""
        kept = self.geometry.layers[layer].kept
        return self.in_place and kept == (shape, shape)

    def write(self, layer: int, slots: Tensor | slice, key: Tensor, value: Tensor) -> None:
        """Store key [T, kv_heads, key width] and value [T, kv_heads, value width] of one layer at slots [T]."""
        for plane, new in zip(self._kept[layer], (key, value), strict=False):
            if isinstance(slots, slice):
                plane[slots].copy_(self._as_stored(new))
            else:
                plane.index_copy_(0, slots, self._as_stored(new))

    def read(self, layer: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer at slots [n] -> [n, kv_heads, width] each, in `dtype`. A slice of that type is no copy.

        What is read of a list of slots is there until the next one is read.
        """
        if isinstance(slots, Tensor) and self.in_place and self.device.type == "cpu":
            keys, *values = (self._copied(plane, slots, kind) for kind, plane in enumerate(self._kept[layer]))
        else:
            keys, *values = (plane for block in self._blocks[layer] for plane in self._seen(block, slots).unbind())
        return keys, values[0] if values else self._within(layer, keys)

    def _copied(self, plane: Tensor, slots: Tensor, kind: int) -> Tensor:
        """A plane at slots [n], in memory that is taken once: the system would clear all of it anew for every layer."""
        count, shape = len(slots), plane.shape[1:]
        room = self._room.get((kind, shape))
        if room is None or len(room) < count:
            with torch.inference_mode(False):
                room = self._room[kind, shape] = torch.empty(count, *shape, dtype=self.dtype)
        return torch.index_select(plane, 0, slots, out=room[:count])

    def heads_first(self, run: slice) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Keys, and values, of a run of n slots: views [1, kv_heads, n, width] by layer. The cache must be `in_place`."""
        views = [each[:, run].transpose(1, 2).unsqueeze(1).unbind() for each in self.tensors]
        if len(views) == 1 and len(views[0]) == 2 * len(self._planes):
            return views[0][::2], views[0][1::2]
        placed = [[views[tensor][number] for tensor, number in own] for own in self._planes]
        keys = [own[0] for own in placed]
        return keys, [own[1] if own[1:] else self._within(layer, own[0]) for layer, own in enumerate(placed)]

    def move(self, source: Tensor, target: Tensor, window: tuple[Tensor, Tensor] | None = None) -> None:
        """Copy slots source [n] to slots target [n] in every layer, or from and to those of `window` in layers that have window slots.

        The two may overlap: all is read before anything is written.
        """
        if not len(source):
            return
        for raw, windowed in zip(self.raw, self._windowed, strict=True):
            start, end = window if windowed and window is not None else (source, target)
            raw.index_copy_(1, end, raw.index_select(1, start))

    def _within(self, layer: int, keys: Tensor) -> Tensor:
        """The values of a layer that lie in keys [..., key width] of it: [..., value width]"""
        return keys[..., : self.geometry.layers[layer].value_width]

    def _seen(self, planes: Tensor, slots: Tensor | slice) -> Tensor:
        """What is at these slots of planes that lie side by side, in `dtype`."""
        seen = planes[:, slots] if isinstance(slots, slice) else planes.index_select(1, slots)
        return seen if self.in_place else seen.view(self.stored).to(self.dtype)

    def _as_stored(self, numbers: Tensor) -> Tensor:
        if self.in_place:
            return numbers
        limit = torch.finfo(self.stored).max
        return numbers.clamp(-limit, limit).to(self.stored).view(torch.uint8)


def _planes(geometry: Geometry, shapes: Sequence[_Shape]) -> list[list[_Plane]]:
    """By layer, where its planes are: of each the tensor of those of its shape, and its number there."""
    order = list(dict.fromkeys(shapes))
    planes = iter(_Plane(order.index(shape), shapes[:number].count(shape)) for number, shape in enumerate(shapes))
    return [[next(planes) for _ in layer.kept] for layer in geometry.layers]
