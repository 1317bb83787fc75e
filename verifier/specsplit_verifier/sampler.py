"""How the target's tokens are picked: with the noise of each session, made while the forward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from specsplit.sampling import NoiseCache, likeliest_tokens, pick
from specsplit_verifier.step import TreeInput

NOISE_BYTES = 64 * 2**20  # rows of noise kept: the next step asks again for most positions of this one

Pick = Callable[[Tensor], list[int | None]]
"""Logits [n, V] behind every token of the drafts, end to end -> the n tokens picked; None where there is no pick."""


class Sampler:
    """Picks for one target."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._noise = NoiseCache(NOISE_BYTES)
        self._beside = ThreadPoolExecutor(1, "noise")

    def prepare(self, trees: Sequence[TreeInput]) -> Pick:
        """How to pick behind these drafts. To be asked before their forward: the noise is made beside it."""
        if all(tree.sampling.greedy for tree in trees):
            return likeliest_tokens
        samplings = [tree.sampling for tree in trees for _ in tree.draft.tokens]
        positions = [position + 1 for tree in trees for position in tree.draft.positions]
        noise = self._beside.submit(self._foresee, trees)

        def sampled(logits: Tensor) -> list[int | None]:
            noise.result()
            return pick(logits, samplings, positions, self._noise)

        return sampled

    def _foresee(self, trees: Sequence[TreeInput]) -> None:
        sampled = [tree for tree in trees if not tree.sampling.greedy]
        wanted = dict.fromkeys((tree.sampling.seed, p + 1) for tree in sampled for p in tree.draft.positions)
        seeds, positions = zip(*wanted, strict=True)
        self._noise.warm(seeds, positions, self._vocab_size, self._device)
