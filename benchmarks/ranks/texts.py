"""Texts that are known before a soak asks for them: greedy ones by transformers, seeded ones by a verifier alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.plain import generators
from benchmarks.prompts import held_out
from benchmarks.rank import generate, rank, request
from specsplit.settings import VerifierSettings
from specsplit.values import Sampling

WIDTHS = (1, 9, 16, 33, 64, 120)
"""Of the prompts, in tokens."""
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Known:
    """One text."""

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    tokens: tuple[int, ...]

    def begins_with(self, tokens: Sequence[int], count: int) -> bool:
        """True if these are its first `count` tokens, and all of them."""
        return tuple(tokens) == self.tokens[:count]


async def known_texts(model: Path, longest: int) -> list[Known]:
    """A greedy and a seeded text of `longest` tokens for every prompt."""
    torch.set_num_threads(1)
    prompts = [tuple(held_out(model, max(WIDTHS), len(WIDTHS))[at, :width].tolist()) for at, width in enumerate(WIDTHS)]
    plain = generators(model, None, 0)["generate, 1 thread"]
    texts = [Known(prompt, 0.0, 0, tuple(plain(list(prompt), longest, 0.0, 0)[0])) for prompt in prompts]
    async with rank(VerifierSettings(model=model)) as verifier:
        for seed, prompt in enumerate(prompts):
            wanted = request(prompt, longest, Sampling(temperature=TEMPERATURE, seed=seed), None)
            texts.append(Known(prompt, TEMPERATURE, seed, tuple((await generate(verifier, wanted)).tokens)))
    return texts
