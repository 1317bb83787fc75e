"""How often nodes are accepted, against what their drafter says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Survivals = npt.NDArray[np.float64]
_BINS: Final = 10
"""By halves of survival; the last bin has all that is less likely."""
_BELIEF: Final = 4.0
"""Accepted nodes that the drafter's word counts as, in every bin and in every session."""


class Acceptance:
    """What becomes of a drafter's nodes, by how likely it says they are. Older steps fade by 0.5 % each."""

    def __init__(self) -> None:
        self._accepted = np.zeros(_BINS)
        self._expected = np.zeros(_BINS)

    def observe(self, survivals: Survivals, accepted: Sequence[int]) -> None:
        """Nodes with these survivals were verified, those at the indices `accepted` were accepted."""
        bins = _bins(survivals)
        self._accepted *= 0.995
        self._expected *= 0.995
        self._expected += np.bincount(bins, survivals, _BINS)
        self._accepted += np.bincount(bins[list(accepted)], minlength=_BINS)

    def corrected(self, survivals: Survivals) -> Survivals:
        """Survivals as they have shown to be."""
        ratios = (self._accepted + _BELIEF) / (self._expected + _BELIEF)
        return survivals * ratios[_bins(survivals)]


class SessionAcceptance:
    """The same in one session, whose text may suit the drafter better or worse than others. Older steps fade by 5 % each."""

    def __init__(self, drafter: Acceptance) -> None:
        self._drafter = drafter
        self._accepted = self._expected = 0.0

    def observe(self, survivals: Survivals, accepted: Sequence[int]) -> None:
        """Nodes with these survivals were verified, those at the indices `accepted` were accepted."""
        expected = self._drafter.corrected(survivals).sum()
        self._accepted = 0.95 * self._accepted + len(accepted)
        self._expected = 0.95 * self._expected + float(expected)
        self._drafter.observe(survivals, accepted)

    def corrected(self, survivals: Survivals) -> Survivals:
        """Survivals as they have shown to be in this session; they fall as the drafter's do, and none is above 1."""
        ratio = (self._accepted + _BELIEF) / (self._expected + _BELIEF)
        return np.minimum.accumulate(np.minimum(1.0, ratio * self._drafter.corrected(survivals)))


def _bins(survivals: Survivals) -> npt.NDArray[np.int64]:
    return np.minimum(-np.log2(np.maximum(survivals, 1e-12)), _BINS - 1).astype(np.int64)
