"""Sampling by shared noise: the same text whatever the drafter does."""

from __future__ import annotations

from specsplit.sampling.filters import restrict
from specsplit.sampling.noise import Noise, NoiseCache, gumbel
from specsplit.sampling.pick import perturb, pick

__all__ = ["Noise", "NoiseCache", "gumbel", "perturb", "pick", "restrict"]
