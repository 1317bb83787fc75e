"""Which tokens a sampled pick may choose from: top_k, then top_p, then min_p, in the order and sense of Hugging Face.

Each of the three is a bar that a token's logit has to reach, so a row's allowed set is one comparison with the highest of them.

    R   rows      V   vocabulary      M   likeliest tokens looked at
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from specsplit.model.tensors.transfer import on_device
from specsplit.values import Sampling

_FIRST_LOOK: Final = 128
"""Likeliest tokens in which a top_p set is sought before the whole vocabulary is sorted."""


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """The filters of R rows, or of the rows of R sessions."""

    counts: Tensor | None
    """[R, 1] top_k; V for all. None: no row has a top_k or a top_p."""
    masses: Tensor | None
    """[R, 1] top_p, float64. None: no row has one."""
    margins: Tensor | None
    """[R, 1] the logarithm of min_p. None: no row has one."""
    depth: int
    """Likeliest tokens to look at first: all that a top_k keeps are among them."""

    @classmethod
    def of(cls, samplings: Sequence[Sampling], vocab_size: int, device: torch.device) -> Filters:
        """Make the filters of these sessions, a row each. The likeliest token passes all filters, so a greedy session has none."""
        counts = [vocab_size if s.greedy else min(s.top_k or vocab_size, vocab_size) for s in samplings]
        masses = [1.0 if s.greedy else s.top_p for s in samplings]
        margins = [math.log(s.min_p) if s.min_p and not s.greedy else -math.inf for s in samplings]
        nuclear = any(mass < 1 for mass in masses)
        ranked = nuclear or any(count < vocab_size for count in counts)
        first = _FIRST_LOOK if nuclear else 1
        return cls(
            _column(counts, np.int64, device) if ranked else None,
            _column(masses, np.float64, device) if nuclear else None,
            _column(margins, np.float32, device) if max(margins, default=-math.inf) > -math.inf else None,
            min(vocab_size, max(first, *(c for c in counts if c < vocab_size), 1)),
        )

    def take(self, rows: Tensor) -> Filters:
        """Take the filters of some rows, or of the rows of some sessions."""
        columns = (self.counts, self.masses, self.margins)
        counts, masses, margins = (None if column is None else column[rows] for column in columns)
        return Filters(counts, masses, margins, self.depth)


def restrict(scaled: Tensor, filters: Filters) -> Tensor:
    """logits / T [R, V] with -inf at tokens that a row's filters exclude. Every row keeps its likeliest token.

    A token at -inf is never the likeliest of a row that has another. A row without numbers (NaN, or infinity as its largest) stays one,
    and changes no other row.

    top_p counts probabilities renormalised after top_k. A tie with the last token allowed is allowed too. The input is returned
    as it is if no row restricts anything.
    """
    bar = None if filters.counts is None else _rank_bar(scaled, filters.counts, filters.masses, filters.depth)
    if filters.margins is not None:
        # p_v < min_p * p_max in logarithms, whatever p is normalised by
        floor = scaled.amax(dim=1, keepdim=True) + filters.margins
        bar = floor if bar is None else torch.maximum(bar, floor)
    return scaled if bar is None else scaled.masked_fill(scaled < bar, -torch.inf)


def _rank_bar(scaled: Tensor, count: Tensor, mass: Tensor | None, depth: int) -> Tensor:
    """The lowest logit [R, 1] that top_k and top_p let in; -inf for rows with neither."""
    vocab_size = scaled.shape[1]
    best = scaled.topk(depth, dim=1).values
    kth = best.gather(1, (count - 1).clamp(max=depth - 1)).masked_fill(count == vocab_size, -torch.inf)
    if mass is None:
        return kth
    bar, settled = _mass_bar(scaled, best, kth, count, mass)
    return bar if settled else _mass_bar(scaled, scaled.sort(dim=1, descending=True).values, kth, count, mass)[0]


def _mass_bar(scaled: Tensor, best: Tensor, kth: Tensor, count: Tensor, mass: Tensor) -> tuple[Tensor, bool]:
    """The bar [R, 1] as far as the likeliest tokens `best` [R, M] tell, and whether they tell all. count [R, 1] <= V, mass [R, 1]."""
    total = scaled.masked_fill(scaled < kth, -torch.inf).logsumexp(dim=1, keepdim=True)
    share = (best.double() - total).exp().masked_fill(best < kth, 0)
    kept = (
        share.cumsum(dim=1) - share < mass
    )  # a token is in if those above it do not fill the mass; the first always is
    # A row of no numbers keeps none: it must not look for the one before the first.
    lowest = best.gather(1, (kept.sum(dim=1, keepdim=True) - 1).clamp_(min=0))
    unsettled = kept.all(dim=1, keepdim=True) & (mass < 1) & (count > best.shape[1])
    return torch.maximum(kth, lowest.masked_fill(mass == 1, -torch.inf)), not unsettled.any()


def _column(values: Sequence[float], dtype: DTypeLike, device: torch.device) -> Tensor:
    return on_device(np.array(values, dtype=dtype), device)[:, None]
