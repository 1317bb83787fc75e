"""The ranks of one group: model instances that share the weights of their MLPs, and so have to step together.

What ranks say to each other goes over a Mesh. One rank alone has one too, so that nobody asks whether there is a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specsplit.errors import RankLost

Numbers = tuple[int, ...]


class Mesh(Protocol):
    """The ranks of a group, seen from one of them. Used by one thread at a time, and in the same order on every rank."""

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def exchange(self, numbers: Sequence[int]) -> tuple[Numbers, ...]:
        """Tell every rank these numbers -> everybody's, by rank. All tell equally many. Raises RankLost."""
        ...

    def abort(self, why: str) -> RankLost:
        """End the group, since this rank cannot go on; the others read why. Returns the error to raise. Any thread may call it."""
        ...

    def close(self) -> None:
        """Part from the others in peace: none of them waits for this rank, or will. After `abort` nothing is left to do."""
        ...


class LocalMesh:
    """The Mesh of a rank that is alone."""

    rank: int = 0
    size: int = 1

    def exchange(self, numbers: Sequence[int]) -> tuple[Numbers, ...]:
        return (tuple(numbers),)

    def abort(self, why: str) -> RankLost:
        return RankLost(why)

    def close(self) -> None:
        """Do nothing: there is no other rank."""
