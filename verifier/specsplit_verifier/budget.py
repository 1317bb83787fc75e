"""Which nodes of a batch are worth their place in a step.

A step over n tokens takes base + n * token seconds, and commits a token for each root and s for a node of survival s, on average. All
nodes cost the same, so the best step of any size takes the likeliest nodes of all sessions, whoever they belong to, and the best size is
found by looking at each: the one of which

    (roots + the sum of the survivals) / (base + tokens * token)

is highest. A session that accepts well so gets the nodes of one that does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Survivals = npt.NDArray[np.float64]


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


def fixed(survivals: Sequence[Survivals], line: Line, most: int) -> Spending:
    """The step that takes as many nodes of every session as there are, `most` at most."""
    nodes = [min(len(each), most) for each in survivals]
    length = len(nodes) + sum(float(each[:count].sum()) for each, count in zip(survivals, nodes, strict=True))
    return Spending(nodes, length, line.base_s + line.token_s * (len(nodes) + sum(nodes)))


def spend(survivals: Sequence[Survivals], line: Line) -> Spending:
    """Choose the step that commits the most tokens per second. `survivals`: of each session's nodes, falling, the root left out."""
    roots = len(survivals)
    pooled = np.concatenate(survivals) if roots else np.empty(0)
    owners = np.repeat(np.arange(roots), [len(each) for each in survivals])
    order = np.argsort(-pooled, kind="stable")  # of equals the first of its session, so that each gives its best
    lengths = roots + np.concatenate(([0.0], np.cumsum(pooled[order])))
    seconds = line.base_s + line.token_s * (roots + np.arange(len(lengths)))
    best = int(np.argmax(lengths / seconds))  # of equals the fewest nodes
    nodes = np.bincount(owners[order[:best]], minlength=roots).tolist()
    return Spending(nodes, float(lengths[best]), float(seconds[best]))
