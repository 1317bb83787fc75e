"""What grammars allow behind the tokens of a step.

R   rows of sessions with a grammar      W   words of 32 tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from specsplit_verifier.records.step import TreeInput


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """The masks of a step."""

    rows: NDArray[np.int64]
    """[R] rows that have one, counted over the tokens of all trees."""
    words: NDArray[np.int32]
    """[R, W] a bit for every token, the lowest of a word first."""


def masks_of(trees: Sequence[TreeInput]) -> Masks:
    """Walk down the trees whose sessions have a grammar: the mask of a node follows from its own path."""
    starts = accumulate((len(tree.draft.tokens) for tree in trees), initial=0)
    held = [
        (range(start, start + len(tree.draft.tokens)), tree.grammar.masks(tree.draft.tokens, tree.draft.parents))
        for tree, start in zip(trees, starts, strict=False)
        if tree.grammar is not None
    ]
    return Masks(np.concatenate([rows for rows, _ in held]), np.concatenate([words for _, words in held]))
