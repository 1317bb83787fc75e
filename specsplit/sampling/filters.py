"""Which tokens a sampled pick may choose from: top_k, then top_p, then min_p, in the order and sense of Hugging Face.

Each of the three is a bar that a token's logit has to reach, so a row's allowed set is one comparison with the highest of them.

    R   rows      V   vocabulary      M   likeliest tokens looked at
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.values import Sampling

_FIRST_LOOK: Final = 128
"""Likeliest tokens in which a top_p set is sought before the whole vocabulary is sorted."""


def restrict(scaled: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """logits / T [R, V] with -inf at tokens that row r's sampling excludes. Every row keeps its likeliest token.

    A token at -inf is never the likeliest of a row that has another. A row without numbers (NaN, or infinity as its largest) stays one,
    and changes no other row.

    top_p counts probabilities renormalised after top_k. A tie with the last token allowed is allowed too. The input is returned
    as it is if no row restricts anything.
    """
    ranked = any(s.top_k or s.top_p < 1 for s in samplings)
    floored = any(s.min_p for s in samplings)
    if not ranked and not floored:
        return scaled
    bar = torch.full((len(samplings), 1), -torch.inf, device=scaled.device)
    if ranked:
        bar = _rank_bar(scaled, samplings)
    if floored:
        # p_v < min_p * p_max in logarithms, whatever p is normalised by
        margins = [math.log(s.min_p) if s.min_p else -math.inf for s in samplings]
        bar = torch.maximum(bar, scaled.amax(dim=1, keepdim=True) + _column(margins, torch.float32, scaled))
    return scaled.masked_fill(scaled < bar, -torch.inf)


def _rank_bar(scaled: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """The lowest logit [R, 1] that top_k and top_p let in; -inf for rows with neither."""
    vocab_size = scaled.shape[1]
    counts = [min(s.top_k or vocab_size, vocab_size) for s in samplings]
    masses = _column([s.top_p for s in samplings], torch.float64, scaled)
    count = _column(counts, torch.int64, scaled)
    depth = min(vocab_size, max(_FIRST_LOOK, *(c for c in counts if c < vocab_size), 1))
    bar, settled = _bar_within(scaled, count, masses, depth)
    return bar if settled else _bar_within(scaled, count, masses, vocab_size)[0]


def _bar_within(scaled: Tensor, count: Tensor, mass: Tensor, depth: int) -> tuple[Tensor, bool]:
    """The bar [R, 1] as far as the `depth` likeliest tokens tell, and whether they tell all. count [R, 1] <= V, mass [R, 1]."""
    best = scaled.topk(depth, dim=1).values
    kth = best.gather(1, (count - 1).clamp(max=depth - 1)).masked_fill(count == scaled.shape[1], -torch.inf)
    total = scaled.masked_fill(scaled < kth, -torch.inf).logsumexp(dim=1, keepdim=True)
    share = (best.double() - total).exp().masked_fill(best < kth, 0)
    kept = (
        share.cumsum(dim=1) - share < mass
    )  # a token is in if those above it do not fill the mass; the first always is
    # A row of no numbers keeps none: it must not look for the one before the first.
    lowest = best.gather(1, (kept.sum(dim=1, keepdim=True) - 1).clamp_(min=0))
    unsettled = kept.all(dim=1, keepdim=True) & (mass < 1) & (count > depth)
    return torch.maximum(kth, lowest.masked_fill(mass == 1, -torch.inf)), not unsettled.any()


def _column(values: Sequence[float], dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)[:, None]
