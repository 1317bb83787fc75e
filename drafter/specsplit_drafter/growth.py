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

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from specsplit.speculation import Commit, Grow, Original, Reroot
from specsplit.tree import ROOT, Ints, likeliest
from specsplit.values import Plan
from specsplit_drafter.calibration import Calibration
from specsplit_drafter.candidates import Candidates
from specsplit_drafter.proposer import UNBOUNDED, Advance, Children

_NO_SLOTS: Final[Ints] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class GrowthLimits:
    """Where growing stops."""

    expand_width: int = 64
    """Nodes in one expansion, all sessions together."""
    expand_survival: float = 0.002
    """A node less likely than this to be accepted is not expanded."""
    push_survival: float = 0.002
    """A candidate less likely than this to be accepted is not pushed."""


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
        self._expansions = self._tree.attach(np.object_, None)
        """The Children that came of an expansion, for all of its nodes."""
        self._rows = self._tree.attach(np.int64, 0)
        """The node's row in them."""
        self._candidates = Candidates.none()
        self._queue: Ints | None = None
        """What is worth expanding, the likeliest first; None if it must be made anew."""
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
        return self._chosen == 0 and not len(self.offers())

    def offers(self) -> Ints:
        """Slots of nodes that may be taken now, the likeliest first; none if none is worth it, or there is no place for its children.

        The root stands in an expansion without any other node of its session (see proposer.py).
        """
        if self.stalled or self._starved or self._root_chosen or not self.plan.speculates:
            return _NO_SLOTS
        if not self.plan.draft_ahead and self._rounds >= self.plan.num_steps:
            return _NO_SLOTS
        if self._queue is None:
            self._queue = self._ranked()
        if len(self._queue) and self._queue[0] == ROOT:
            return self._queue[:1]
        return self._queue[: max(0, self._places)]

    def take(self, slots: Ints) -> None:
        """Some of the offers were chosen; `expanded` or `postponed` must follow."""
        self._chosen += len(slots)
        self._root_chosen = bool(slots[0] == ROOT)
        self._taken.data[slots] = True
        self._queue = None

    def starve(self) -> None:
        """Rest until the next commit: there is no room for its nodes in the proposer."""
        self._starved = True

    def postponed(self) -> None:
        """The root was taken, but its context is not read yet: it stays the head."""
        self._chosen -= 1
        self._root_chosen = self._taken.data[ROOT] = False
        self._queue = None

    def expanded(self, slots: Ints, children: Children) -> None:
        """Nodes that were taken have been expanded, all in one round: their children are candidates now, the likely ones nodes."""
        self._chosen -= len(slots)
        self._root_chosen = self._told_resting = False  # if it rested, it was for want of features
        self._expansions.data[slots] = children
        self._rows.data[slots] = np.arange(len(slots))
        self._candidates = self._candidates.beside(Candidates.of(slots, children, self._tree, self._calibration))
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
            self._learn(slot, pick)
        reroot = self.original.commit(commit)
        self._forget_the_dead(reroot)
        self._rounds = 0
        self._starved = self._told_resting = False
        self.push()  # survival has risen: what was too unlikely may not be now
        return Advance(commit.tokens, path, reroot.moved)

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

    def _ranked(self) -> Ints:
        tree = self._tree
        plan = self.plan
        depth = min(2 * plan.num_steps + 1 if plan.draft_ahead else plan.num_steps, self._max_depth)
        deepest = min(tree.root_position + depth, self._max_context - 1)
        worthwhile = tree.scores >= tree.root_score + self._expand_floor
        worthwhile &= tree.positions < deepest
        worthwhile &= ~self._taken.data[: len(worthwhile)]
        slots = worthwhile.nonzero()[0]
        return likeliest(slots, tree.scores.take(slots), self._width)

    def _learn(self, slot: int, pick: int) -> None:
        expansion: Children | None = self._expansions.data[slot]
        if expansion is None:
            return
        row = self._rows.data[slot]
        raw = expansion.log_probabilities[row]
        possible = np.isfinite(raw).nonzero()[0]  # not what the session's filters forbid
        if len(possible):
            picked = (expansion.tokens[row].take(possible) == pick).nonzero()[0]
            self._calibration.observe(raw.take(possible), int(picked[0]) if len(picked) else None)

    def _forget_the_dead(self, reroot: Reroot) -> None:
        if reroot.moved is None:
            self._candidates = Candidates.none()
            return
        # The candidates of a root that is renewed give way to those that its expansion brings.
        self._candidates = self._candidates.moved(reroot.moved, lowest=ROOT + self._renews_root)
        if self._renews_root:
            self._taken.data[ROOT] = False


def choose(growths: Iterable[Growth], width: int, room: int) -> list[tuple[Growth, Ints]]:
    """The likeliest nodes (slots, the likeliest first) to expand, at most `width`, at most `room` of them not a root.

    A session whose likeliest node finds no room is starved: it rests until its next commit.
    """
    offers = [(growth, slots) for growth in growths if len(slots := growth.offers())]
    if sum(len(slots) for _, slots in offers) > min(width, room):
        offers = _shared(offers, width, room)
    for growth, slots in offers:
        growth.take(slots)
    return offers


def _shared(offers: Sequence[tuple[Growth, Ints]], width: int, room: int) -> list[tuple[Growth, Ints]]:
    """What each session gets of its offers, if that is anything. Roots come first: nothing is likelier."""
    owners = np.arange(len(offers)).repeat([len(slots) for _, slots in offers])
    below = np.concatenate([slots for _, slots in offers]) != ROOT
    survivals = np.concatenate([growth.original.tree.survivals(slots) for growth, slots in offers])
    order = np.lexsort((-survivals, below))  # stable: of equals the session that stands first
    fitting = ~below[order] | (below[order].cumsum() <= room)
    chosen = owners[order[fitting]][:width]
    if len(chosen) < width:
        for number in set(owners[order[~fitting]].tolist()):
            offers[number][0].starve()
    counts = np.bincount(chosen, minlength=len(offers)).tolist()
    return [(growth, slots[:count]) for (growth, slots), count in zip(offers, counts, strict=True) if count]
