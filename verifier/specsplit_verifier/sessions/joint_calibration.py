"""How likely the target goes along an edge of which two drafters say something, each in its own way, or only one of them does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

BINS: Final = 6
"""Bins of what a drafter says, each of half the probability of the one before; the last has all that is less likely."""
SILENT: Final = -1
"""The bin of a drafter that does not say that there is such an edge."""
BELIEF: Final = 4.0
"""Weight of what is said, in edges that the target went along."""
FADING: Final = 0.995
"""Weight that an edge has left after the next one of its kind."""


class Said(NamedTuple):
    """What two drafters say of one edge: the log of the probability that the target goes along it; None: no word of it."""

    first: float | None
    second: float | None

    @property
    def kind(self) -> tuple[int, int]:
        """The bins of both: edges of one kind have one record."""
        return _bin_of(self.first), _bin_of(self.second)

    @property
    def likelier(self) -> float:
        """The higher of both: what two drafters name is rather more likely than what one does."""
        return max(each for each in self if each is not None)


@dataclass(slots=True)
class _Record:
    """Edges of one kind whose parents were accepted."""

    went: float = 0.0
    """Number of edges that the target took."""
    expected: float = 0.0
    """Number of edges that it should have taken, by what was said."""

    @property
    def log_ratio(self) -> float:
        return math.log((self.went + BELIEF) / (self.expected + BELIEF))


class JointCalibration:
    """The record of two drafters together.

    Edges are told apart by how likely each of the two says that they are. So the word of each counts for as much as it has been worth
    beside such a word of the other, and what both name is not held to be as unlikely as either says.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[int, int], _Record] = {}
        self._log_ratios: dict[tuple[int, int], float] = {}
        """How much likelier edges of each kind were than what was said of them, the log; only of kinds that were seen."""

    def edges(self, said: Iterable[Said]) -> list[float]:
        """Estimate the edges of which this is said; none is above 0."""
        ratios = self._log_ratios
        return [min(0.0, each.likelier + ratios.get(each.kind, 0.0)) for each in said]

    def observe(self, said: Sequence[Said], went: Sequence[bool]) -> None:
        """Observe along which of these edges, all of them of accepted parents, the target went."""
        for each, gone in zip(said, went, strict=True):
            kind = each.kind
            record = self._records.setdefault(kind, _Record())
            record.went = FADING * record.went + gone
            record.expected = FADING * record.expected + math.exp(each.likelier)
            self._log_ratios[kind] = record.log_ratio


def _bin_of(edge: float | None) -> int:
    return SILENT if edge is None else min(int(-edge / math.log(2.0)), BINS - 1)
