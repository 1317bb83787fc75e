"""The link of a node to its parent as one number, so that links can be compared by the thousand."""

from __future__ import annotations

from typing import Final

from specsplit.tree.columns import Ints

_TOKEN_BITS: Final = 32


def link(parent: int, token: int) -> int:
    """Pack the slot of a parent and the token of its child into one number."""
    return parent << _TOKEN_BITS | token


def links(parents: Ints, tokens: Ints) -> Ints:
    """Pack each parent and token [n] as `link` does."""
    return (parents << _TOKEN_BITS) | tokens
