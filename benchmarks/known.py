"""Texts that are known before anybody asks a cluster for them: greedy ones by transformers, all others by a verifier alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TypedDict

import torch

from benchmarks.plain import generators
from benchmarks.prompts import held_out
from benchmarks.rank import generate, rank, request
from specsplit.requests import choice_seed
from specsplit.settings import VerifierSettings
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import Sampling
from specsplit_verifier.edge.verifier import Verifier

WIDTHS = (1, 9, 16, 33, 64, 120)
"""Lengths of the prompts, in tokens."""
TEMPERATURE = 0.8
_PLAIN = Sampling()


class Picking(TypedDict):
    """The options of a request that say how tokens are picked."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float


@dataclass(frozen=True, slots=True)
class Known:
    """One text; with its seed, further choices of the same prompt."""

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    tokens: tuple[int, ...]
    others: tuple[tuple[int, ...], ...] = ()
    """The tokens of the choices from 1 on."""
    picks: Sampling = _PLAIN
    """How its tokens are picked, but for temperature and seed."""
    readings: tuple[tuple[str, ...], ...] = ()
    """Of every choice what its first 0, 1, 2 and so on tokens read."""

    @property
    def sampling(self) -> Sampling:
        """How its tokens are picked."""
        return replace(self.picks, temperature=self.temperature, seed=self.seed)

    @property
    def options(self) -> Picking:
        """The same, as options of a request."""
        picks = self.sampling
        return {
            "temperature": picks.temperature, "top_k": picks.top_k, "top_p": picks.top_p, "min_p": picks.min_p,
            "seed": picks.seed, "logit_bias": dict(picks.logit_bias), "repetition_penalty": picks.repetition_penalty,
            "frequency_penalty": picks.frequency_penalty, "presence_penalty": picks.presence_penalty,
        }  # fmt: skip

    def begins_with(self, tokens: Sequence[int], count: int) -> bool:
        """True if these are its first `count` tokens, and all of them."""
        return tuple(tokens) == self.tokens[:count]

    def choice(self, index: int) -> tuple[int, ...]:
        """The tokens of one choice; choice 0 is the text itself."""
        return (self.tokens, *self.others)[index]


async def known_texts(model: Path, longest: int, choices: int = 1, picks: Sequence[Sampling] = ()) -> list[Known]:
    """A greedy and a seeded text of `longest` tokens for every prompt, then one for each of `picks`, with so many choices each.

    The choices of a greedy text are all alike.
    """
    torch.set_num_threads(1)
    prompts = [tuple(held_out(model, max(WIDTHS), len(WIDTHS))[at, :width].tolist()) for at, width in enumerate(WIDTHS)]
    plain = generators(model, None, 0)["generate, 1 thread"]
    greedy = [tuple(plain(list(prompt), longest, 0.0, 0)[0]) for prompt in prompts]
    texts = [Known(prompt, 0.0, 0, text, (text,) * (choices - 1)) for prompt, text in zip(prompts, greedy, strict=True)]
    seeded = [Sampling(temperature=TEMPERATURE, seed=seed) for seed in range(len(prompts))]
    async with rank(VerifierSettings(model=model)) as verifier:
        for prompt, pick in zip(cycle(prompts), (*seeded, *picks), strict=False):
            texts.append(await _drawn(verifier, prompt, longest, pick, choices))
    tokenizer = Tokenizer.load(model)
    return [replace(each, readings=_readings(tokenizer, (each.tokens, *each.others))) for each in texts]


async def _drawn(verifier: Verifier, prompt: tuple[int, ...], count: int, pick: Sampling, choices: int) -> Known:
    """What is picked so, without drafter."""
    drawn: list[tuple[int, ...]] = []
    for index in range(choices):
        wanted = request(prompt, count, replace(pick, seed=choice_seed(pick.seed, index)), None)
        drawn.append(tuple((await generate(verifier, wanted)).tokens))
    return Known(prompt, pick.temperature, pick.seed, drawn[0], tuple(drawn[1:]), pick)


def _readings(tokenizer: Tokenizer, choices: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(tokenizer.decode(tokens[:count]) for count in range(len(tokens) + 1)) for tokens in choices)
