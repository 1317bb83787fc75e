"""Which nodes of a batch are worth their place in a step.

A step over n tokens takes base + n * token seconds, and commits a token for each root and s for a node of survival s, on average. All
nodes cost the same, so the best step of any size takes the likeliest nodes of all sessions, whoever they belong to, and the best size is
found by looking at each: the one of which

    (roots + the sum of the survivals) / (base + tokens * token)

is highest. A session that accepts well so gets the nodes of one that does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Survivals = npt.NDArray[np.float64]
Owners = npt.NDArray[np.int64]


class Line(NamedTuple):
    """Seconds of a step by its tokens."""

    base_s: float
    """What does not depend on the nodes that are taken; above 0."""
    token_s: float
    """Of one token; not below 0."""


class Spending(NamedTuple):
    """What a step verifies."""

    nodes: list[int]
    """How many of each session's best nodes, the root not counted."""
    length: float
    """Tokens that it is expected to commit, all sessions together."""
    seconds: float
    """What it is expected to take."""

    def at_least(self, least: Sequence[int]) -> Spending:
        """The same with so many nodes of each session, whether they pay or not; there may be fewer to be had."""
        return self._replace(nodes=[max(pair) for pair in zip(self.nodes, least, strict=True)])


class Pool(NamedTuple):
    """The nodes of a batch, session by session, each session's best first; roots left out."""

    survivals: Survivals
    owners: Owners
    """Whose each is, counted from 0; ascending."""
    sessions: int

    def counts(self, owners: Owners) -> list[int]:
        """How many of these are each session's."""
        return np.bincount(owners, minlength=self.sessions).tolist()


def pooled(sessions: Sequence[Sequence[float]]) -> Pool:
    """Put survivals of sessions together."""
    lengths = np.fromiter(map(len, sessions), np.int64, len(sessions))
    owners = np.repeat(np.arange(len(sessions)), lengths)
    return Pool(np.fromiter(chain.from_iterable(sessions), np.float64, len(owners)), owners, len(sessions))


def fixed(pool: Pool, line: Line, most: int) -> Spending:
    """The step that takes as many nodes of every session as there are, `most` at most."""
    rank = np.arange(len(pool.owners)) - np.searchsorted(pool.owners, pool.owners)
    taken = rank < most
    length = pool.sessions + float(pool.survivals.sum(where=taken))
    seconds = line.base_s + line.token_s * (pool.sessions + np.count_nonzero(taken))
    return Spending(pool.counts(pool.owners[taken]), length, float(seconds))


def spend(pool: Pool, line: Line) -> Spending:
    """Choose the step that commits the most tokens per second."""
    order = np.argsort(
        -pool.survivals, kind="stable"
    )  # of equals the first of its session, so that each gives its best
    lengths = pool.sessions + np.concatenate(([0.0], np.cumsum(pool.survivals[order])))
    seconds = line.base_s + line.token_s * (pool.sessions + np.arange(len(lengths)))
    best = int(np.argmax(lengths / seconds))  # of equals the fewest nodes
    return Spending(pool.counts(pool.owners[order[:best]]), float(lengths[best]), float(seconds[best]))
