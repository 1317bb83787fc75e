"""Picks for rows of which each is a session of its own, and what others say should be picked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor
from transformers.generation.logits_process import SequenceBiasLogitsProcessor

from specsplit import sampling
from specsplit.sampling import Noise, SamplingBatch, SamplingRows, TokenCounts, gumbel
from specsplit.values import Sampling


def rows_of(logits: Tensor, samplings: Sequence[Sampling]) -> SamplingRows:
    """Row r is picked under samplings[r]."""
    return SamplingBatch(samplings, logits.shape[1], logits.device).rows(range(len(samplings)))


def perturb(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise = gumbel) -> Tensor:
    """What the picks are the argmax of, where nothing is penalised."""
    return sampling.perturb(logits, rows_of(logits, samplings), positions, noise=noise)


def pick(
    logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise = gumbel
) -> list[int | None]:
    """The tokens picked, where nothing is penalised."""
    return sampling.pick(logits, rows_of(logits, samplings), positions, noise=noise)


def counted(text: Sequence[int], prompt_tokens: int) -> TokenCounts:
    """The counts of a whole text."""
    counts = TokenCounts(prompt_tokens)
    counts.add(text)
    return counts


class OpenAIPenalties(LogitsProcessor):
    """Frequency and presence by OpenAI's formula, token by token; transformers has none."""

    def __init__(self, frequency: float, presence: float, prompt_tokens: int) -> None:
        self._frequency, self._presence, self._prompt_tokens = frequency, presence, prompt_tokens

    def __call__(self, input_ids: torch.LongTensor, scores: Tensor) -> Tensor:
        out = scores.clone()
        for row, text in enumerate(input_ids.tolist()):
            generated = text[self._prompt_tokens :]
            for token in set(generated):
                out[row, token] -= generated.count(token) * self._frequency + self._presence
        return out


def processors(asked: Sampling, prompt_tokens: int) -> LogitsProcessorList:
    """What transformers would do to logits before the temperature, and OpenAI behind it."""
    chain = LogitsProcessorList()
    if asked.logit_bias:
        biases: Any = {(token,): float(bias) for token, bias in asked.logit_bias}  # of lists 5.17 refuses token 0
        chain.append(SequenceBiasLogitsProcessor(biases))
    if asked.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(float(asked.repetition_penalty)))
    chain.append(OpenAIPenalties(asked.frequency_penalty, asked.presence_penalty, prompt_tokens))
    return chain


def unprocessed(asked: Sampling) -> Sampling:
    """The same without bias and penalties."""
    return replace(asked, logit_bias=(), repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)


def expected(logits: Tensor, asked: Sampling, text: Sequence[int], prompt_tokens: int) -> Tensor:
    """What the pick behind `text` is the argmax of, [1, V] of logits [1, V], by transformers' processors and our noise."""
    done = processors(asked, prompt_tokens)(torch.LongTensor([list(text)]), logits.float())
    return perturb(done, [unprocessed(asked)], [len(text)])
