"""An edge of a tree as one number, so that edges can be compared by the thousand."""

from __future__ import annotations

from typing import Final

from specsplit.tree.columns import Ints

_TOKEN_BITS: Final = 32


def edge(parent: int, token: int) -> int:
    """Pack the slot of a parent and the token of its child into one number."""
    return parent << _TOKEN_BITS | token


def edges(parents: Ints, tokens: Ints) -> Ints:
    """Pack each parent and token [n] as `edge` does."""
    return (parents << _TOKEN_BITS) | tokens
