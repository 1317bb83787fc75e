"""Before a session has as many tokens as it is to have at least, what would end it is not picked: those logits are -inf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, inf

from specsplit_verifier.records.step import TreeInput


def barred(trees: Sequence[TreeInput]) -> NDArray[np.int64]:
    """Which logits of a step are to be -inf, int64 [2, k]: rows, counted over the tokens of all trees, and tokens."""
    cells: list[tuple[int, int]] = []
    row = 0
    for tree in trees:
        for position in tree.draft.positions:
            if tree.floor is not None and position + 1 < tree.floor.position:
                cells += ((row, token) for token in tree.floor.tokens)
            row += 1
    return np.array(cells, dtype=np.int64).reshape(-1, 2).T


def without(logits: Tensor, cells: Tensor) -> Tensor:
    """The logits [n, V] with -inf at cells [2, k]: a copy."""
    rows, tokens = cells
    barred = logits.clone()
    barred[rows, tokens] = -inf
    return barred
