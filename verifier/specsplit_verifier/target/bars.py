"""What may not be picked in a step: ends that come too soon, and what a grammar forbids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from torch import Tensor

from specsplit.model.tensors.transfer import UploadArray
from specsplit.sampling import held
from specsplit_verifier.records.step import TreeInput
from specsplit_verifier.target.end_floor import barred, without
from specsplit_verifier.target.grammar_mask import masks_of

Bar: TypeAlias = Callable[[Tensor], Tensor]
"""Logits [n, V] behind every token of the drafts, end to end -> a copy with -inf at what may not be picked."""


class Bars:
    """The bars of steps, one after the other."""

    def __init__(self) -> None:
        self._beside = ThreadPoolExecutor(1, "grammar")

    def begin(self, trees: Sequence[TreeInput]) -> Callable[[UploadArray], Bar] | None:
        """Begin to work out what may not be picked, on another thread -> a function that waits for it and uploads it; None: all may be."""
        cells = barred(trees)
        working = self._beside.submit(masks_of, trees) if any(tree.grammar is not None for tree in trees) else None
        if working is None and not cells.size:
            return None

        def uploaded(upload: UploadArray) -> Bar:
            bars: list[Bar] = []
            if working is not None:
                masks = working.result()
                rows, words = upload(masks.rows), upload(masks.words)
                bars.append(lambda logits: held(logits, rows, words))
            if cells.size:
                at = upload(cells)
                bars.append(lambda logits: without(logits, at))
            return lambda logits: _through(bars, logits)

        return uploaded


def _through(bars: Sequence[Bar], logits: Tensor) -> Tensor:
    for bar in bars:
        logits = bar(logits)
    return logits
