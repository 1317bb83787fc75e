"""splitmix64 (Steele, Lea, Flood, OOPSLA 2014): one draw from a 64-bit state."""

from __future__ import annotations

from typing import Final

GOLDEN: Final = 0x9E3779B97F4A7C15
"""What the state grows by from draw to draw."""
MIX_1: Final = 0xBF58476D1CE4E5B9
MIX_2: Final = 0x94D049BB133111EB
_MASK: Final = 2**64 - 1


def draw(state: int) -> int:
    """The draw from a state: a bijection of 64-bit integers. The state is taken modulo 2^64."""
    z = (state + GOLDEN) & _MASK
    z = (z ^ z >> 30) * MIX_1 & _MASK
    z = (z ^ z >> 27) * MIX_2 & _MASK
    return z ^ z >> 31
