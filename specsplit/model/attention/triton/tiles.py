"""How work is cut up for the kernels: tiles of queries, blocks of keys, parts. From sizes alone, so that what is captured stays right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from specsplit.model.pages.geometry import Layer

_LEAST: Final = 16
"""Lines, and numbers of a key, that one product of matrices takes at least."""
MOST_LINES: Final = 64
"""Lines of a tile."""
SHARE: Final = 256
"""Keys of a part that is worth a program of its own."""
MOST_PARTS: Final = 32
WIDEST: Final = (576, 512)
"""Numbers of a key, and of a value."""
WIDEST_EXACT: Final = (256, 256)
"""Numbers of a key, and of a value, in float32."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The queries of one program, and how it reads what they see."""

    lines: int
    group: int
    """Query heads of it, which share one KV head."""
    keys: int
    """Keys that are read at once."""
    warps: int
    stages: int
    """Blocks of keys that are under way at once."""

    @classmethod
    def of(cls, layer: Layer, tokens: int, rows: int, dtype: torch.dtype) -> Tile:
        """For forwards of so many tokens in so many rows, attended to in a layer like this, in this type."""
        heads = layer.num_heads // layer.kv_heads
        exact = dtype == torch.float32
        width = max(layer.key_width, layer.value_width)
        # What is added up, and in float32 what is multiplied, has to fit in the registers of a program.
        lines = MOST_LINES if width <= 256 else MOST_LINES // 2
        keys = 64 if width <= 128 else 32
        if exact or -(-tokens // rows) * heads <= _LEAST:
            lines = _LEAST
        return cls(lines, min(heads, lines), _LEAST if exact else keys, 4 if width <= 128 else 8, 2)

    @property
    def tokens(self) -> int:
        """New tokens of a row that are in it."""
        return self.lines // self.group


def where_sizes_change(layers: Sequence[Layer]) -> list[int]:
    """New tokens of a row, ascending from 1, from which on layers like these may have other sizes of tiles together than before."""
    return sorted({1, *(_LEAST // (layer.num_heads // layer.kv_heads) + 1 for layer in layers)})


def head_blocks(layer: Layer, tile: Tile) -> int:
    """Tiles that hold all query heads of a token."""
    return layer.kv_heads * -(-layer.num_heads // layer.kv_heads // tile.group)


def parts_of(programs: int, processors: int, keys: int, share: int = SHARE) -> int:
    """Into how many parts what is seen is cut, a power of 2: as many as keep a device of so many processors busy.

    programs: those of one part; keys: what a token sees at most; share: how many of these a part has at least.
    """
    wanted = min(2 * processors // programs, -(-keys // share), MOST_PARTS)
    return 1 << (max(1, wanted).bit_length() - 1)


def pieces(layer: Layer) -> tuple[int, int]:
    """The widths, powers of 2, of the two pieces that a key is read in; the second is 0 where the first is all of it."""
    front = max(_LEAST, 1 << (layer.key_width.bit_length() - 1))
    rest = layer.key_width - front
    return front, 0 if rest <= 0 else max(_LEAST, 1 << (rest - 1).bit_length())
