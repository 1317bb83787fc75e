"""The cost of a step, learnt from steps."""

from __future__ import annotations

import math
from typing import Final

FORGETTING: Final = 0.99
_UNITS: Final = 1.0, 64.0, 4096.0
"""Units of the three terms, so that their coefficients are of like size."""
_TRUST: Final = 1e-3, 0.05, 0.05
"""Weight of the prior by term, in steps: a term of which steps show nothing keeps its prior."""

_SHORTEST_S: Final = 1e-6
"""What a step takes at least, where clocks say that it took no time."""

_Three = tuple[float, float, float]
_Symmetric = tuple[float, float, float, float, float, float]
"""The upper triangle of a symmetric matrix [3, 3], row by row."""


class StepCost:
    """Seconds of a step as a + b * tokens + c * KV tokens read, none of them negative.

    Least squares of relative errors over recent steps (older ones fade by 0.99 each), drawn a little towards what was believed before the
    last step, so that what recent steps do not show is not forgotten, however many there are.
    Sessions' KV hardly changes from one step to the next, and trees of one size tell nothing of others: what cannot be told apart
    stays as it was, or goes to the first term. A step is observed on the way to the next, and arrays cost more than three numbers.
    """

    def __init__(self, base_s: float = 0.005, token_s: float = 0.0) -> None:
        """Begin with a prior."""
        self._moments: _Symmetric = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        self._seconds: _Three = 0.0, 0.0, 0.0
        self._mean_s, self._weight = 0.0, 0.0
        self._terms: _Three = base_s, token_s * _UNITS[1], 0.0

    def observe(self, tokens: int, kv_tokens: int, seconds: float) -> None:
        """Learn that a step over so many tokens, that read so much KV, took `seconds`."""
        at, kv = tokens / _UNITS[1], kv_tokens / _UNITS[2]
        share = 1 / max(seconds, 0.05 * self._mean_s, _SHORTEST_S) ** 2
        of_one, of_at, of_kv = share, share * at, share * kv
        aa, ab, ac, bb, bc, cc = (FORGETTING * moment for moment in self._moments)
        self._moments = aa + of_one, ab + of_at, ac + of_kv, bb + of_at * at, bc + of_at * kv, cc + of_kv * kv
        a, b, c = (FORGETTING * sum_s for sum_s in self._seconds)
        self._seconds = a + of_one * seconds, b + of_at * seconds, c + of_kv * seconds
        self._weight = FORGETTING * self._weight + 1
        self._mean_s += (seconds - self._mean_s) / self._weight
        self._terms = self._fit()

    @property
    def mean_s(self) -> float:
        """Weighted mean duration."""
        return self._mean_s if self._weight else self._terms[0]

    @property
    def token_s(self) -> float:
        """Seconds of one more token."""
        return self._terms[1] / _UNITS[1]

    def predict(self, tokens: int, kv_tokens: int = 0) -> float:
        """Compute the expected seconds of a step; never less than a tenth of the mean, nor than a tenth of a microsecond."""
        base, token, kv = self._terms
        return max(base + token / _UNITS[1] * tokens + kv / _UNITS[2] * kv_tokens, 0.1 * max(self.mean_s, _SHORTEST_S))

    def _fit(self) -> _Three:
        """Solve for all terms; without those that come out negative where some do."""
        one_step = 1 / max(self._mean_s, _SHORTEST_S) ** 2  # what a step of mean length counts
        u, v, w = (trust * one_step for trust in _TRUST)
        (aa, ab, ac, bb, bc, cc), (a, b, c), (x, y, z) = self._moments, self._seconds, self._terms
        left, right = (aa + u, ab, ac, bb + v, bc, cc + w), (a + u * x, b + v * y, c + w * z)
        kept, terms = (True, True, True), solved(left, right)
        while True:
            if terms is None or any(
                map(math.isnan, terms)
            ):  # steps that tell the terms apart by less than a float holds
                return self._terms
            if min(terms) >= 0:
                return terms
            kept = kept[0] and terms[0] >= 0, kept[1] and terms[1] >= 0, kept[2] and terms[2] >= 0
            terms = solved(*_only(kept, left, right))


def _only(kept: tuple[bool, bool, bool], left: _Symmetric, right: _Three) -> tuple[_Symmetric, _Three]:
    """Leave terms out of a system: they come out as 0."""
    i, j, k = kept
    aa, ab, ac, bb, bc, cc = left
    alone = (aa if i else 1.0, ab * (i and j), ac * (i and k), bb if j else 1.0, bc * (j and k), cc if k else 1.0)
    return alone, (right[0] * i, right[1] * j, right[2] * k)


def solved(left: _Symmetric, right: _Three) -> _Three | None:
    """Solve for x, given a positive definite matrix and its product with x, by elimination; None if it is not, as far as floats tell."""
    (aa, ab, ac, bb, bc, cc), (a, b, c) = left, right
    if not aa > 0:
        return None
    second, third = ab / aa, ac / aa
    bb, bc, cc, b, c = bb - second * ab, bc - second * ac, cc - third * ac, b - second * a, c - third * a
    if not bb > 0:
        return None
    third = bc / bb
    cc, c = cc - third * bc, c - third * b
    if not cc > 0:
        return None
    z = c / cc
    y = (b - bc * z) / bb
    return (a - ab * y - ac * z) / aa, y, z
