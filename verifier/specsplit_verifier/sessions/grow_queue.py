"""What a drafter has grown for one session and is not in the mirror yet."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from specsplit.speculation import Grow


class Arrival(NamedTuple):
    """A grow, and when it came."""

    grow: Grow
    at: float


class Merged(NamedTuple):
    """Grows that were made between the same two commits, as one."""

    grow: Grow
    times: list[float]
    """When each of them came, in seconds of the clock."""
    last: Grow
    """The last of them as it was."""


class GrowQueue:
    """Grows in the order in which they came. Adding one costs an append; what that makes of the tree is paid for once for all of them."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self.size = 0
        """Grows, nodes and new edges together, which is what they hold of memory."""

    def add(self, grow: Grow, at: float) -> None:
        """Keep a grow that came at `at`."""
        self._arrivals.append(Arrival(grow, at))
        self.size += 1 + len(grow.ids) + len(grow.rescored)

    def take(self) -> Iterator[Merged]:
        """Hand out all of them, those between the same two commits as one; nothing is left."""
        arrivals, self._arrivals = self._arrivals, []
        self.size = 0
        for _, same in groupby(arrivals, lambda arrival: arrival.grow.commits):
            yield _merged(list(same))


def _merged(same: list[Arrival]) -> Merged:
    grows = [arrival.grow for arrival in same]
    return Merged(Grow.merge(grows), [arrival.at for arrival in same], grows[-1])
