"""What a captured forward has to be, to hold the rows of one rank or of all: what ranks agree on before they replay the same one.

A captured forward that exchanges rows is one of the whole group: every rank has to replay the one that all of them captured together. So
each rank tells the least that will do for it, and the least that will do for all of them follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from specsplit.ranks.mesh import Numbers

MOST_FORMS: Final = 16
_ANY: Final = (1 << MOST_FORMS) - 1
NUMBERS: Final = 3
"""How many numbers a demand is."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The least that a captured forward has to be. The default is met by all of them: there are no rows."""

    tokens: int = 0
    rows: int = 0
    forms: int = _ANY
    """Bit i: the i-th way to attend will do, of those that there are, the cheapest first. 0: none will."""

    @property
    def eager(self) -> bool:
        """True if no captured forward will do."""
        return not self.forms

    @property
    def form(self) -> int:
        """The first way to attend that will do. Not to be asked of one that is eager."""
        return (self.forms & -self.forms).bit_length() - 1

    def merged_with(self, other: Demand) -> Demand:
        """The least demand that meets this one and the other."""
        return Demand(max(self.tokens, other.tokens), max(self.rows, other.rows), self.forms & other.forms)

    @property
    def numbers(self) -> Numbers:
        """The demand as numbers, as ranks tell it to each other."""
        return (self.tokens, self.rows, self.forms)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Demand:
        """Read what `numbers` wrote."""
        return cls(*numbers)


EAGER: Final = Demand(forms=0)
"""The rows are not for any captured forward."""


def of_all(demands: Sequence[Demand]) -> Demand:
    """The least demand that meets every one of these, in whatever order they come."""
    return reduce(Demand.merged_with, demands, Demand())
