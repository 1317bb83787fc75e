"""How the target's tokens are picked: with the noise of each session, made while the forward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import torch
from torch import Tensor

from specsplit.sampling import NoiseCache, SamplingBatch, SamplingRows, TokenCounts, likeliest_tokens, pick
from specsplit.values import Sampling
from specsplit_verifier.step import TreeInput

NOISE_BYTES = 64 * 2**20  # rows of noise kept: the next step asks again for most positions of this one

Pick: TypeAlias = Callable[[Tensor], list[int | None]]
"""Logits [n, V] behind every token of the drafts, end to end -> the n tokens picked; None where there is no pick."""


class Sampler:
    """Picks for one target."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._noise = NoiseCache(NOISE_BYTES)
        self._beside = ThreadPoolExecutor(1, "noise")
        self._sessions: Sequence[tuple[Sampling, TokenCounts | None]] = ()
        self._widths: Sequence[int] = ()
        self._batch: SamplingBatch | None = None
        self._rows: SamplingRows | None = None

    def prepare(self, trees: Sequence[TreeInput]) -> Pick:
        """How to pick behind these drafts. To be asked before their forward: the noise is made beside it."""
        if all(tree.sampling.plain for tree in trees):
            return likeliest_tokens
        rows = self._rows_of(trees)
        positions = [position + 1 for tree in trees for position in tree.draft.positions]
        paths = [path for tree in trees for path in _paths(tree)]
        noise = self._beside.submit(self._foresee, rows, positions)

        @torch.inference_mode()
        def sampled(logits: Tensor) -> list[int | None]:
            noise.result()
            return pick(logits, rows, positions, paths, self._noise)

        return sampled

    def _rows_of(self, trees: Sequence[TreeInput]) -> SamplingRows:
        """Every token of every draft is a row. Most steps are of the sessions, and many of the shape, of the one before."""
        sessions = [(tree.sampling, tree.counts) for tree in trees]
        widths = [len(tree.draft.tokens) for tree in trees]
        if self._batch is None or sessions != self._sessions:
            self._sessions, (samplings, counts) = sessions, zip(*sessions, strict=True)
            self._batch, self._rows = SamplingBatch(samplings, self._vocab_size, self._device, counts), None
        if self._rows is None or widths != self._widths:
            owners = [owner for owner, width in enumerate(widths) for _ in range(width)]
            self._widths, self._rows = widths, self._batch.rows(owners)
        return self._rows

    def _foresee(self, rows: SamplingRows, positions: Sequence[int]) -> None:
        self._noise.warm(rows.seeds, rows.of_sampled(positions), self._vocab_size, self._device)


def _paths(tree: TreeInput) -> Sequence[Sequence[int]]:
    """The tokens from below the root to each token of the draft; of no account, and empty, where nothing is counted."""
    if tree.counts is None:
        return [()] * len(tree.draft.tokens)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.draft.tokens, tree.draft.parents, strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else ())
    return paths
