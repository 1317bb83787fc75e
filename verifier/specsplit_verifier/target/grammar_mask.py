"""What grammars allow behind the tokens of a step: all other logits are -inf.

R   rows of sessions with a grammar      W   words of 32 tokens      V   vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, inf

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


def held(logits: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    """The logits [n, V] with -inf in `rows` int64 [R] where `words` int32 [R, W] have a 0: a copy."""
    bits = words.view(torch.uint8)[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=words.device)
    barred = (bits & 1).view(len(rows), -1)[:, : logits.shape[1]] == 0
    masked = logits.clone()
    masked[rows] = masked[rows].masked_fill_(barred, -inf)
    return masked
