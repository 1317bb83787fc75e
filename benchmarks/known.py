"""Texts that are known before anybody asks a cluster for them: greedy ones by transformers, seeded ones by a verifier alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.plain import generators
from benchmarks.prompts import held_out
from benchmarks.rank import generate, rank, request
from specsplit.requests import choice_seed
from specsplit.settings import VerifierSettings
from specsplit.values import Sampling
from specsplit_verifier.verifier import Verifier

WIDTHS = (1, 9, 16, 33, 64, 120)
"""Lengths of the prompts, in tokens."""
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Known:
    """One text; with its seed, further choices of the same prompt."""

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    tokens: tuple[int, ...]
    others: tuple[tuple[int, ...], ...] = ()
    """The texts of the choices from 1 on."""

    def begins_with(self, tokens: Sequence[int], count: int) -> bool:
        """True if these are its first `count` tokens, and all of them."""
        return tuple(tokens) == self.tokens[:count]

    def choice(self, index: int) -> tuple[int, ...]:
        """The text of one choice; choice 0 is the text itself."""
        return (self.tokens, *self.others)[index]


async def known_texts(model: Path, longest: int, choices: int = 1) -> list[Known]:
    """A greedy and a seeded text of `longest` tokens for every prompt, with so many choices each (all alike where it is greedy)."""
    torch.set_num_threads(1)
    prompts = [tuple(held_out(model, max(WIDTHS), len(WIDTHS))[at, :width].tolist()) for at, width in enumerate(WIDTHS)]
    plain = generators(model, None, 0)["generate, 1 thread"]
    greedy = [tuple(plain(list(prompt), longest, 0.0, 0)[0]) for prompt in prompts]
    texts = [Known(prompt, 0.0, 0, text, (text,) * (choices - 1)) for prompt, text in zip(prompts, greedy, strict=True)]
    async with rank(VerifierSettings(model=model)) as verifier:
        for seed, prompt in enumerate(prompts):
            drawn = [await _drawn(verifier, prompt, longest, choice_seed(seed, index)) for index in range(choices)]
            texts.append(Known(prompt, TEMPERATURE, seed, drawn[0], tuple(drawn[1:])))
    return texts


async def _drawn(verifier: Verifier, prompt: Sequence[int], count: int, seed: int) -> tuple[int, ...]:
    """What a seed draws, without drafter."""
    wanted = request(prompt, count, Sampling(temperature=TEMPERATURE, seed=seed), None)
    return tuple((await generate(verifier, wanted)).tokens)
