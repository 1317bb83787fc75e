"""The edge of a node: the natural log of the estimated probability that it is accepted, given that its parent is.

Trees round edges to multiples of 2^-20, and none is below LEAST_EDGE, so that sums of them are exact in floating point. The score of a
node is then the same in whatever order its path is added up, and never above its parent's.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np

from specsplit.tree.columns import Scores

LEAST_EDGE: Final = -1024.0
ROUNDING: Final = 1.5 * 2.0**32
"""A float64 of this size has no bits below 2^-20: adding it, and taking it away again, rounds."""

_Edge = TypeVar("_Edge", float, Scores)


def rounded(edge: _Edge) -> _Edge:
    """Round an edge, or an array of them, as trees keep it."""
    return (edge + ROUNDING) - ROUNDING


def are_edges(edges: Scores) -> bool:
    """Tell whether all of these [n] are in LEAST_EDGE..0."""
    return np.count_nonzero((edges <= 0.0) & (edges >= LEAST_EDGE)) == len(edges)


def as_sent(edges: Scores) -> Scores:
    """Round edges [n] to what they are after they have travelled as float32; one below LEAST_EDGE becomes that."""
    return rounded(np.maximum(edges, LEAST_EDGE).astype(np.float32).astype(np.float64))
