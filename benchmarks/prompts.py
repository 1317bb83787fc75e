"""Prompts from the files that the pocket models were never trained on."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from scripts.pocket import vocabulary
from scripts.pocket.corpus import split
from scripts.pocket.measure import held_out_windows


def held_out(model: Path, width: int, count: int) -> Tensor:
    """`count` windows of held-out files, spread evenly, in the tokens of the model in folder `model`: int64 [count, width]."""
    rows = held_out_windows(vocabulary.encode(vocabulary.load(model), split()[1]), width, count)
    if len(rows) < count:
        raise ValueError(f"the held-out files have only {len(rows)} windows of {width} tokens, {count} wanted")
    return rows
