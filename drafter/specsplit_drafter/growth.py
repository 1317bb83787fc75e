"""Which node to expand next, which candidates to push: a pure policy over the trees of all sessions.

The next root is almost always a node that was not verified in the step before: a sibling of those that were. So breadth counts more than
depth: all children of an expanded node stay candidates, those whose survival is above a threshold are pushed, the likeliest pushed nodes
of all sessions are expanded together in wide batches, and it goes on while the verifier works on a step. A candidate below the
threshold is not lost: when a commit makes the root one of its ancestors, its survival rises, and it may be pushed without another forward.

What a session has grown is in one tree, the original's: which nodes were taken to be expanded and what came of it are columns of it, and
candidates name their parents by slot. Sessions are independent but for `choose`, which fills one expansion with the likeliest nodes of
them all.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final, TypeAlias

import numpy as np

from specsplit.speculation import Commit, Grow, Original, Reroot
from specsplit.tree import ROOT, TokenTree, likeliest
from specsplit.values import Plan
from specsplit_drafter.calibration import Calibration
from specsplit_drafter.candidates import Candidates
from specsplit_drafter.proposer import UNBOUNDED, Advance, Children, FrontierNode, SessionKey


@dataclass(frozen=True)
class GrowthLimits:
    """Where growing stops."""

    expand_width: int = 64
    """Nodes in one expansion, all sessions together."""
    expand_survival: float = 0.002
    """A node less likely than this to be accepted is not expanded."""
    push_survival: float = 0.002
    """A candidate less likely than this to be accepted is not pushed."""


Offer: TypeAlias = tuple[float, int]
"""Log-survival and slot of a node that is worth expanding."""


class Growth:
    """One session's speculation at its source, and what may still become of it. A node is named by its slot in the tree."""

    def __init__(
        self,
        original: Original,
        plan: Plan,
        limits: GrowthLimits,
        calibration: Calibration,
        max_context: int,
        *,
        max_depth: int = UNBOUNDED,
        renews_root: bool = False,
    ) -> None:
        """max_context: positions, from 0, that a drafted token may have. max_depth, renews_root: see Proposer."""
        self.original = original
        self.plan = plan
        self.stalled = False
        """True if nothing can be expanded before the proposer has been fed; for the board to set."""
        self._tree: Final = original.tree
        self._push_floor = math.log(limits.push_survival)
        self._expand_floor = math.log(limits.expand_survival)
        self._width = limits.expand_width
        self._calibration = calibration
        self._max_context = max_context
        self._max_depth = max_depth
        self._renews_root = renews_root
        self._taken = self._tree.attach(np.bool_, False)
        """True for nodes that were taken to be expanded."""
        self._broods = self._tree.attach(np.object_, None)
        """The Children that came of it."""
        self._candidates = Candidates.none()
        self._queue: list[Offer] | None = None
        """What is worth expanding, the likeliest last; None if it must be made anew."""
        self._queue_is_cut = False
        """True if there are more of them than the queue holds."""
        self._root_chosen = False
        self._chosen = 0
        self._rounds = 0
        self._starved = False
        self._told_resting = False
        self._sealed: list[Grow] = []
        self._unsent: list[Grow] = []

    @property
    def resting(self) -> bool:
        """True if nothing more will come before the next commit, or the features that it is stalled for."""
        return self._chosen == 0 and not self.offers()

    def offers(self) -> Sequence[Offer]:
        """Nodes that may be taken now, the likeliest last; none if none is worth it, or there is no place for its children.

        The root stands in an expansion without any other node of its session (see proposer.py).
        """
        if self.stalled or self._starved or self._root_chosen or not self.plan.speculates:
            return ()
        if not self.plan.draft_ahead and self._rounds >= self.plan.num_steps:
            return ()
        if self._queue is None or (not self._queue and self._queue_is_cut):
            self._queue = self._ranked()
        if self._queue and self._queue[-1][1] == ROOT:
            return self._queue[-1:]
        return self._queue[-self._places :] if self._places > 0 else ()

    def take(self, count: int) -> None:
        """The last `count` of the offers; `expanded` or `postponed` must follow."""
        assert self._queue is not None, "there were offers"
        taken = [slot for _, slot in self._queue[-count:]]
        del self._queue[-count:]
        self._chosen += count
        self._root_chosen = taken == [ROOT]
        self._taken.data[taken] = True

    def starve(self) -> None:
        """Rest until the next commit: there is no room for its nodes in the proposer."""
        self._starved = True

    def postponed(self) -> None:
        """The root was taken, but its context is not read yet: it stays the head."""
        self._chosen -= 1
        self._root_chosen = self._taken.data[ROOT] = False
        self._queue = None

    def frontier(self, session: SessionKey, slots: Sequence[int]) -> Iterator[FrontierNode]:
        """What the proposer is told of nodes that were taken."""
        ids, tokens, parents, positions = self._tree.columns(slots)
        above = self._tree.ids.take(parents, mode="clip")
        columns = (column.tolist() for column in (ids, above, tokens, positions))
        return map(FrontierNode._make, zip(repeat(session), *columns, strict=False))

    def expanded(self, expansions: Sequence[tuple[int, Children]]) -> None:
        """Nodes that were taken have been expanded, all in one round: their children are candidates now, the likely ones nodes."""
        self._chosen -= len(expansions)
        self._root_chosen = self._told_resting = False  # if it rested, it was for want of features
        for slot, children in expansions:
            self._broods.data[slot] = children
        self._candidates = self._candidates.beside(Candidates.of(expansions, self._tree, self._calibration))
        self._rounds += 1
        self.push()

    def push(self) -> None:
        """Make nodes of the candidates above the threshold, likeliest first, while there is room."""
        self._queue = None
        room = self.original.room if self.plan.speculates else 0
        chosen = self._candidates.likeliest(self._tree.root_score + self._push_floor, room)
        if not len(chosen):
            return
        new = self._candidates.at(chosen)
        self._candidates = self._candidates.without(chosen)
        self._unsent.append(self.original.grow_at_once(new.parents, new.tokens, new.scores))

    def replan(self, plan: Plan) -> None:
        """Grow under another plan from now on. The verifier is answered, if only that this rests."""
        self.plan = plan
        self._told_resting = False
        self.push()

    def commit(self, commit: Commit) -> Advance:
        """Reroot, and learn from what was picked. Raises IllegalEvent if the commit does not follow the tree."""
        path = self.original.path_of(commit)
        if self._unsent:  # made before this commit: the mirror must be able to tell
            self._sealed.append(Grow.merge(self._unsent))
            self._unsent = []
        for slot, pick in zip((ROOT, *path), commit.tokens, strict=True):
            self._learn(self._broods.data[slot], pick)
        reroot = self.original.commit(commit)
        self._forget_the_dead(reroot)
        self._rounds = 0
        self._starved = self._told_resting = False
        self.push()  # survival has risen: what was too unlikely may not be now
        return Advance(commit.tokens, reroot.path, reroot.root, LiveIds(self._tree))

    def flush(self) -> list[Grow]:
        """What the verifier has not been told yet, in order: at most one grow per commit."""
        told, self._sealed = self._sealed, []
        resting = self.resting
        waits = not self.plan.draft_ahead and not resting
        if waits or (not self._unsent and (self._told_resting or not resting)):
            return told
        grow = Grow.merge(self._unsent) if self._unsent else Grow(self.original.commits)
        self._unsent = []
        self._told_resting = resting
        return [*told, replace(grow, resting=resting)]

    @property
    def _places(self) -> int:
        """Nodes that may still be chosen: each is to get a child at least."""
        return self.original.room - self._chosen

    def _ranked(self) -> list[Offer]:
        tree = self._tree
        plan = self.plan
        depth = min(2 * plan.num_steps + 1 if plan.draft_ahead else plan.num_steps, self._max_depth)
        deepest = min(tree.root_position + depth, self._max_context - 1)
        worthwhile = tree.scores >= tree.root_score + self._expand_floor
        worthwhile &= tree.positions < deepest
        worthwhile &= ~self._taken.data[: len(worthwhile)]
        slots = worthwhile.nonzero()[0]
        best = likeliest(slots, tree.scores.take(slots), self._width)[::-1]
        self._queue_is_cut = len(best) < len(slots)
        return list(zip(tree.survivals(best).tolist(), best.tolist(), strict=True))

    def _learn(self, brood: Children | None, pick: int) -> None:
        if brood is None:
            return
        possible = np.isfinite(brood.log_probabilities).nonzero()[0]  # not what the session's filters forbid
        if len(possible):
            picked = (brood.tokens.take(possible) == pick).nonzero()[0]
            raw = brood.log_probabilities.take(possible)
            self._calibration.observe(raw, int(picked[0]) if len(picked) else None)

    def _forget_the_dead(self, reroot: Reroot) -> None:
        if reroot.moved is None:
            self._candidates = Candidates.none()
            return
        # The candidates of a root that is renewed give way to those that its expansion brings.
        self._candidates = self._candidates.moved(reroot.moved, lowest=ROOT + self._renews_root)
        if self._renews_root:
            self._taken.data[ROOT] = False


class LiveIds(Set[int]):
    """Ids of the nodes below a root, as they are when one asks."""

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree

    def __contains__(self, node_id: object) -> bool:
        return isinstance(node_id, int) and (self._tree.find(node_id) or ROOT) != ROOT

    def __iter__(self) -> Iterator[int]:
        return iter(self._tree.ids[1:].tolist())

    def __len__(self) -> int:
        return len(self._tree)


def choose(growths: Iterable[Growth], width: int, room: int) -> list[tuple[Growth, int]]:
    """The likeliest nodes (slots) to expand, at most `width`, at most `room` of them not a root.

    A session whose likeliest node finds no room is starved: it rests until its next commit.
    """
    offers = [(growth, list(offers)) for growth in growths if (offers := growth.offers())]
    heads = [(-left[-1][0], number, growth, left) for number, (growth, left) in enumerate(offers)]
    heapq.heapify(heads)
    chosen: list[tuple[Growth, int]] = []
    while heads and len(chosen) < width:
        _, number, growth, left = heads[0]
        slot = left[-1][1]
        if slot != ROOT and room <= 0:
            growth.starve()
            heapq.heappop(heads)
            continue
        room -= slot != ROOT
        chosen.append((growth, slot))
        left.pop()
        if left:
            heapq.heapreplace(heads, (-left[-1][0], number, growth, left))
        else:
            heapq.heappop(heads)
    for growth, count in Counter(growth for growth, _ in chosen).items():
        growth.take(count)
    return chosen
