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
        self.ratios: Survivals = np.ones(_BINS)
        """How often nodes of each bin were accepted, relative to what was said of them."""

    def observe(self, survivals: Survivals, accepted: Sequence[int]) -> None:
        """Nodes with these survivals were verified, those at the indices `accepted` were accepted."""
        bins = bins_of(survivals)
        self._expected = 0.995 * self._expected + np.bincount(bins, survivals, _BINS)
        self._accepted = 0.995 * self._accepted + np.bincount(bins[list(accepted)], minlength=_BINS)
        self.ratios = (self._accepted + _BELIEF) / (self._expected + _BELIEF)


class SessionAcceptance:
    """The same in one session, whose text may suit the drafter better or worse than others. Older steps fade by 5 % each."""

    def __init__(self, drafter: Acceptance) -> None:
        self._drafter = drafter
        self._accepted = self._expected = self._said = 0.0

    @property
    def ratios(self) -> Survivals:
        """How often nodes of each bin should be accepted here, relative to what is said of them."""
        return self._drafter.ratios * ((self._accepted + _BELIEF) / (self._expected + _BELIEF))

    @property
    def level(self) -> float:
        """The same of all nodes together, so of those that are still to come."""
        return (self._accepted + _BELIEF) / (self._said + _BELIEF)

    def observe(self, survivals: Survivals, accepted: Sequence[int]) -> None:
        """Nodes with these survivals were verified, those at the indices `accepted` were accepted."""
        self._said = 0.95 * self._said + float(survivals.sum())
        expected = (survivals * self._drafter.ratios[bins_of(survivals)]).sum()
        self._accepted = 0.95 * self._accepted + len(accepted)
        self._expected = 0.95 * self._expected + float(expected)
        self._drafter.observe(survivals, accepted)


def corrected(survivals: Survivals, owners: npt.NDArray[np.int64], ratios: Sequence[Survivals]) -> Survivals:
    """Survivals of the nodes of several sessions, as they have shown to be; none is above 1.

    `owners`: whose each is, by index into `ratios`, ascending. Each session's fall as the drafter's do: its first nodes are its best.
    """
    if not len(survivals):
        return survivals
    shown = np.minimum(1.0, survivals * np.stack(ratios)[owners, bins_of(survivals)])
    apart: Survivals = 2.0 * owners.astype(
        np.float64
    )  # so that the least so far of one session is above all of the next
    lowest: Survivals = np.minimum.accumulate(shown - apart)
    return lowest + apart


def bins_of(survivals: Survivals) -> npt.NDArray[np.int64]:
    """The bin of each."""
    return np.minimum(-np.log2(np.maximum(survivals, 1e-12)), _BINS - 1).astype(np.int64)
