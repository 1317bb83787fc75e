"""Bytes as GPT-2 writes them in tables of tokens: every byte one printable character, and the merges that such a table stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_Piece = TypeVar("_Piece", str, bytes)


def _byte_alphabet() -> dict[str, int]:
    """Character to byte, as GPT-2 wrote it: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
"""Character to byte."""
_CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def spelt(token: bytes) -> str:
    """A token's bytes, one character each."""
    return "".join(_CHARACTER_OF[byte] for byte in token)


def merges_of(ranks: Mapping[_Piece, int], *, by_length: bool = False) -> list[tuple[_Piece, _Piece]]:
    """The pairs that make a token of two, best first: by the rank of what they make, then by those of the two, or by their lengths first.

    Tables that were published without merges stand for these; the order is that of transformers.
    """
    merges: list[tuple[int, int, int, int, _Piece, _Piece]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = ranks.get(token[:cut]), ranks.get(token[cut:])
            if left is not None and right is not None:
                merges.append((rank, cut if by_length else 0, left, right, token[:cut], token[cut:]))
    return [(left, right) for *_, left, right in sorted(merges)]
