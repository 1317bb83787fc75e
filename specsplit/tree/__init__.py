"""A token tree in arrays, and the choice of its best nodes (docs/adr/0007-trees-in-arrays.md)."""

from __future__ import annotations

from specsplit.tree.choice import likeliest
from specsplit.tree.columns import ROOT, Column, Flags, Ints, Scores
from specsplit.tree.edges import LEAST_EDGE, ROUNDING, are_edges, as_sent
from specsplit.tree.token_tree import TokenTree, link

__all__ = [
    "LEAST_EDGE",
    "ROOT",
    "ROUNDING",
    "Column",
    "Flags",
    "Ints",
    "Scores",
    "TokenTree",
    "are_edges",
    "as_sent",
    "likeliest",
    "link",
]
