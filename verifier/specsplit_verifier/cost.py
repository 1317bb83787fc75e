"""What a step costs, learnt from the steps themselves."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

FORGETTING: Final = 0.99
_UNITS: Final = np.array([1.0, 64.0, 4096.0])
"""Of the three terms, so that their coefficients are of like size."""
_TRUST: Final = np.array([1e-3, 0.05, 0.05])
"""How many steps what was believed before counts as, by term: a term that steps say nothing of stays as it was."""


class StepCost:
    """Seconds of a step as a + b * tokens + c * KV tokens read, none of them negative.

    Least squares of relative errors over recent steps (older ones fade by 0.99 each), drawn a little towards what was believed before them.
    Sessions' KV hardly changes from one step to the next, and trees of one size tell nothing of others: what cannot be told apart
    stays as it was, or goes to the first term.
    """

    def __init__(self, base_s: float = 0.005, token_s: float = 0.0) -> None:
        """What is believed before the first step."""
        self._believed = np.array([base_s, token_s, 0.0]) * _UNITS
        self._moments = np.zeros((3, 3))
        self._seconds = np.zeros(3)
        self._mean_s, self._weight = 0.0, 0.0
        self._terms: npt.NDArray[np.float64] = self._believed

    def observe(self, tokens: int, kv_tokens: int, seconds: float) -> None:
        """Learn that a step over so many tokens, that read so much KV, took `seconds`."""
        at = np.array([1.0, tokens, kv_tokens]) / _UNITS
        share = 1 / max(seconds, 0.05 * self._mean_s, 1e-6) ** 2
        self._moments = FORGETTING * self._moments + share * np.outer(at, at)
        self._seconds = FORGETTING * self._seconds + share * seconds * at
        self._weight = FORGETTING * self._weight + 1
        self._mean_s += (seconds - self._mean_s) / self._weight
        self._terms = self._fit()

    @property
    def mean_s(self) -> float:
        """Weighted mean duration."""
        return self._mean_s if self._weight else float(self._believed[0])

    @property
    def token_s(self) -> float:
        """Seconds of one more token."""
        return float(self._terms[1] / _UNITS[1])

    def predict(self, tokens: int, kv_tokens: int = 0) -> float:
        """Expected seconds of a step; never less than a tenth of the mean."""
        base, token, kv = (self._terms / _UNITS).tolist()
        return max(base + token * tokens + kv * kv_tokens, 0.1 * self.mean_s)

    def _fit(self) -> npt.NDArray[np.float64]:
        """Solve for all terms; without those that come out negative where some do."""
        weight = _TRUST * self._weight_of_one
        left, right = self._moments + np.diag(weight), self._seconds + weight * self._believed
        kept = np.array([True, True, True])
        while True:
            terms = np.zeros(3)
            try:
                terms[kept] = np.linalg.solve(left[np.ix_(kept, kept)], right[kept])
            except np.linalg.LinAlgError:  # steps that tell the terms apart by less than a float holds
                return self._terms
            negative = terms < 0
            if not negative.any():
                return terms
            kept &= ~negative

    @property
    def _weight_of_one(self) -> float:
        """What a step of mean length counts."""
        return 1 / max(self._mean_s, 1e-6) ** 2
