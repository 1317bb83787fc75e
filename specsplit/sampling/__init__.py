"""Sampling by shared noise: the same text whatever the drafter does."""

from __future__ import annotations

from specsplit.sampling.batch import SamplingBatch, SamplingRows
from specsplit.sampling.counts import TokenCounts
from specsplit.sampling.filters import Filters, restrict
from specsplit.sampling.held import held
from specsplit.sampling.noise import Noise, NoiseCache, gumbel, prepare_noise
from specsplit.sampling.pick import divisors_of, has_pick, likeliest_tokens, perturb, pick, pick_noisy

__all__ = [
    "Filters",
    "Noise",
    "NoiseCache",
    "SamplingBatch",
    "SamplingRows",
    "TokenCounts",
    "divisors_of",
    "gumbel",
    "has_pick",
    "held",
    "likeliest_tokens",
    "perturb",
    "pick",
    "pick_noisy",
    "prepare_noise",
    "restrict",
]
