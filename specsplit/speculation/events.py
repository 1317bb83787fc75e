"""The values that cross between the two sides, and the one the verifier steps with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from specsplit.values.lean import lean


@dataclass(frozen=True, slots=True)
class Grow:
    """Nodes added by the drafter, as parallel sequences of equal length, and nodes whose edges it gives anew."""

    commits: int
    """Commits the drafter had applied; says which root a parent of 0 is."""
    ids: Sequence[int] = ()
    """Ascending, above every earlier id of the session, from 1."""
    parents: Sequence[int] = ()
    tokens: Sequence[int] = ()
    edges: Sequence[float] = ()
    """Log of the estimated probability that a node is accepted, given that its parent is."""
    resting: bool = False
    """True if nothing more will come before the next commit or, for a head, before more features."""
    rescored: Sequence[int] = ()
    """Ids, ascending, of nodes whose edge is another from now on; those that this grow adds may be among them."""
    new_edges: Sequence[float] = ()
    """The new edge of each node that is rescored."""

    @staticmethod
    def merge(grows: Sequence[Grow]) -> Grow:
        """Make one grow that does what all of these, made between the same two commits, do in order."""
        if len(grows) == 1:
            return grows[0]
        rescored = dict(chain.from_iterable(zip(g.rescored, g.new_edges, strict=True) for g in grows))
        ids = sorted(rescored)
        return Grow(
            grows[-1].commits,
            tuple(chain.from_iterable(g.ids for g in grows)),
            tuple(chain.from_iterable(g.parents for g in grows)),
            tuple(chain.from_iterable(g.tokens for g in grows)),
            tuple(chain.from_iterable(g.edges for g in grows)),
            grows[-1].resting,
            tuple(ids),
            tuple(rescored[node_id] for node_id in ids),
        )


@lean()
class Commit:
    """A path accepted by the verifier, and its bonus."""

    number: int
    """Counts the session's commits on this stream from 1."""
    deepest: int
    """Id of the deepest accepted node; 0 if none was."""
    tokens: Sequence[int]
    """The accepted tokens from below the root, then the bonus; never empty."""
    step_us: int = 0
    """Microseconds from one step of the verifier to the next; 0: unknown."""
    seen: int = 0
    """Highest id that the mirror had been told of; 0: none, or unknown."""
    floor: float = 0.0
    """Survival, below 1, below which the step had no use for a node; 0: it takes what it can get."""

    @property
    def bonus(self) -> int:
        """The target's own token behind the accepted path; the next root."""
        return self.tokens[-1]


class Forecast(NamedTuple):
    """What a step over a draft should bring."""

    expected_length: float
    """Expected accept_length: the bonus and the expected drafts."""
    leaf_survival: float
    """Probability that the target goes on behind a node below which the draft has nothing: what further nodes may still bring."""


_PLAIN: Final = Forecast(1.0, 1.0)
"""Of a root alone."""


@lean()
class Draft:
    """What a session brings to one step: N tokens, root first, parents before children."""

    ids: Sequence[int]
    tokens: Sequence[int]
    parents: Sequence[int]
    """Index of each one's parent within the draft; -1 for the root."""
    positions: Sequence[int]
    """Index of each in the session's whole sequence."""
    log_survivals: Sequence[float]
    """Log-survival of each, 0 for the root."""

    @staticmethod
    def root_alone(token: int, position: int) -> Draft:
        """Make the draft of plain decoding: the root and nothing else."""
        return Draft((0,), (token,), (-1,), (position,), (0.0,))

    @property
    def edges(self) -> list[float]:
        """Edge of each, 0 for the root."""
        log_survivals = self.log_survivals
        return [0.0, *(own - log_survivals[up] for own, up in zip(log_survivals[1:], self.parents[1:], strict=True))]

    def weighed(self, edges: Sequence[float]) -> Draft:
        """Make one of these tokens, in this order, with other edges [N], of which the root's, the first, is not looked at."""
        log_survivals = [0.0]
        for parent, edge in zip(self.parents[1:], edges[1:], strict=True):
            log_survivals.append(log_survivals[parent] + edge)
        return Draft(self.ids, self.tokens, self.parents, self.positions, log_survivals)

    @property
    def forecast(self) -> Forecast:
        """What the target should make of it."""
        if len(self.log_survivals) == 1:
            return _PLAIN
        probabilities, inner = [math.exp(log_survival) for log_survival in self.log_survivals], set(self.parents)
        ends = math.fsum(probability for i, probability in enumerate(probabilities) if i not in inner)
        return Forecast(math.fsum(probabilities), ends)

    def first(self, count: int) -> Draft:
        """Keep the first `count` tokens. Where nodes stand best first, these are the best draft of so many."""
        if count >= len(self.tokens):
            return self
        ids, tokens, parents = self.ids[:count], self.tokens[:count], self.parents[:count]
        return Draft(ids, tokens, parents, self.positions[:count], self.log_survivals[:count])

    def ordered(self, order: Sequence[int]) -> Draft:
        """Keep the tokens at these indices, in this order, in which every parent stands before its children; the root is the first."""
        places = {-1: -1} | {index: place for place, index in enumerate(order)}
        return Draft(
            [self.ids[index] for index in order],
            [self.tokens[index] for index in order],
            [places[self.parents[index]] for index in order],
            [self.positions[index] for index in order],
            [self.log_survivals[index] for index in order],
        )

    def likeliest(self, count: int, topk: int | None = None) -> Draft:
        """Keep the `count` likeliest tokens, best first, of one node's children at most `topk`. No node is likelier than its parent."""
        order = sorted(range(len(self.ids)), key=self.log_survivals.__getitem__, reverse=True)
        if topk is None:
            return self.ordered(order[:count])
        children_left, kept = {-1: 1}, list[int]()
        for index in order:
            left = children_left.get(self.parents[index], 0)
            if left and len(kept) < count:
                children_left[self.parents[index]] = left - 1
                children_left[index] = topk
                kept.append(index)
        return self.ordered(kept)

    def accept(self, picks: Sequence[int | None]) -> list[int]:
        """Walk down from the root along the target's picks: indices of the accepted path, root first.

        `picks[i]` is the token that the target picks behind draft token i, None if it has no pick there. The bonus is the pick behind
        the last index returned, which is None for the root alone: a node behind which there is no pick is the bonus itself, as it would
        be in plain decoding.
        """
        if len(self.tokens) == 1:
            return [0]
        children = {(parent, token): i for i, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True))}
        path = [0]
        while (pick := picks[path[-1]]) is not None and (below := children.get((path[-1], pick))) is not None:
            path.append(below)
        return path[:-1] if pick is None and len(path) > 1 else path
