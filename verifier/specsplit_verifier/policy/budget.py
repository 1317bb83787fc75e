"""Which nodes of a batch are worth their place in a step.

A step over n tokens takes base + n * token seconds, and commits a token for each root and s for a node of survival s, on average. All
nodes cost the same, so the best step of any size takes the likeliest nodes of all sessions, whoever they belong to, and the best size is
found by adding the likeliest node that is left until one no longer pays: then none behind it does. It is the size of which

    (roots + the sum of the survivals) / (base + tokens * token)

is highest. A session that accepts well so gets the nodes of one that does not.

Where a step has room for fewer nodes than are worth their place, the likeliest of all sessions have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import NamedTuple


class Line(NamedTuple):
    """Seconds of a step by its tokens."""

    base_s: float
    """Seconds that do not depend on the nodes that are taken; above 0."""
    token_s: float
    """Seconds of one token; not below 0."""


class Spending(NamedTuple):
    """The nodes that a step verifies, and what that costs and brings."""

    nodes: list[int]
    """Number of each session's best nodes that are verified, the root not counted."""
    length: float
    """Tokens that it is expected to commit, all sessions together."""
    seconds: float
    """Seconds that it is expected to take."""
    crowded_out: frozenset[int] = frozenset()
    """Sessions, by number, whose nodes had no room beside likelier ones of others, none of them."""

    def price(self, line: Line) -> float:
        """Compute the tokens that one more node of this step would cost: one that is less likely is not worth its place."""
        return self.length * line.token_s / self.seconds

    def at_least(self, least: Sequence[int]) -> Spending:
        """Take so many nodes of each session, whether they pay or not; there may be fewer to be had."""
        if not any(least):
            return self
        return self._replace(nodes=[max(pair) for pair in zip(self.nodes, least, strict=True)])

    def at_most(self, most: int, sessions: Sequence[Iterable[float]], line: Line) -> Spending:
        """Take `most` of these nodes, all sessions together: the likeliest. `sessions`: the survivals that they were chosen from."""
        if sum(self.nodes) <= most:
            return self
        nodes, length = [0] * len(self.nodes), float(len(self.nodes))
        for survival, number in islice(_likeliest(map(islice, sessions, self.nodes)), most):
            nodes[number] += 1
            length += survival
        pairs = enumerate(zip(self.nodes, nodes, strict=True))
        crowded_out = frozenset(number for number, (wanted, taken) in pairs if wanted and not taken)
        return Spending(nodes, length, line.base_s + line.token_s * (len(nodes) + most), crowded_out)


def fixed(sessions: Sequence[Iterable[float]], line: Line, most: int | None = None) -> Spending:
    """Make the step that takes all nodes of every session, or `most` of each at most."""
    taken = [list(islice(survivals, most)) for survivals in sessions]
    nodes, length = [len(own) for own in taken], len(taken) + sum(map(sum, taken))
    return Spending(nodes, length, line.base_s + line.token_s * (len(taken) + sum(nodes)))


def spend(sessions: Sequence[Iterable[float]], line: Line) -> Spending:
    """Choose the step that commits the most tokens per second, of survivals that fall in every session.

    The best size is reached once the likeliest node that is left adds less than it costs, since all others add less still: no session
    is asked for more of its nodes than that takes.
    """
    nodes, length = [0] * len(sessions), float(len(sessions))
    seconds = line.base_s + line.token_s * len(sessions)
    for survival, number in _likeliest(sessions):
        if survival * seconds <= length * line.token_s:
            break
        nodes[number] += 1
        length, seconds = length + survival, seconds + line.token_s
    return Spending(nodes, length, seconds)


def _likeliest(sessions: Iterable[Iterable[float]]) -> Iterator[tuple[float, int]]:
    """Nodes of all sessions, the likeliest first, each as (survival, number of its session). What is not asked for is not looked at."""
    left = [
        (-survival, number, rest) for number, rest in enumerate(map(iter, sessions)) for survival in islice(rest, 1)
    ]
    heapify(left)
    while left:
        negated_survival, number, rest = left[0]
        yield -negated_survival, number
        following = next(rest, None)
        if following is None:
            heappop(left)
        else:
            heapreplace(left, (-following, number, rest))
