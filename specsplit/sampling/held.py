"""Logits of rows in which a grammar says what may be picked.

R   rows with a mask      W   words of 32 tokens      V   vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor, inf


def held(logits: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    """The logits [n, V] with -inf in `rows` int64 [R] where `words` int32 [R, W] have a 0, the lowest bit of a word first: a copy."""
    bits = words.view(torch.uint8)[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=words.device)
    barred = (bits & 1).view(len(rows), -1)[:, : logits.shape[1]] == 0
    masked = logits.clone()
    masked[rows] = masked[rows].masked_fill_(barred, -inf)
    return masked
