"""Picks for rows of which each is a session of its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specsplit import sampling
from specsplit.sampling import Noise, SamplingBatch, SamplingRows, gumbel
from specsplit.values import Sampling


def rows_of(logits: Tensor, samplings: Sequence[Sampling]) -> SamplingRows:
    """Row r is picked under samplings[r]."""
    return SamplingBatch(samplings, logits.shape[1], logits.device).rows(range(len(samplings)))


def perturb(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise = gumbel) -> Tensor:
    """What the picks are the argmax of."""
    return sampling.perturb(logits, rows_of(logits, samplings), positions, noise)


def pick(
    logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise = gumbel
) -> list[int | None]:
    """The tokens picked."""
    return sampling.pick(logits, rows_of(logits, samplings), positions, noise)
