"""How the tree of one session grows, and which nodes of all sessions are expanded next: a pure policy.

The next root is almost always a node that was not verified in the step before: a sibling of those that were. So breadth counts more than
depth: all children of an expanded node stay candidates, those whose survival is above a threshold are pushed, the likeliest pushed nodes
of all sessions are expanded together in wide batches, and it goes on while the verifier works on a step.

What a session has grown is in one tree, the original's; all that is known of a node is in columns of it. Sessions are independent but for
`choose`, which fills one expansion with the likeliest nodes of them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from specsplit.speculation import Commit, Grow, Original
from specsplit.tree import ROOT, Ints
from specsplit.values import Plan
from specsplit_drafter.calibration import Calibration
from specsplit_drafter.candidates import CandidatePool
from specsplit_drafter.expandable import ExpandableNodes, GrowthLimits
from specsplit_drafter.proposer import UNBOUNDED, Advance, Children
from specsplit_drafter.unsent import UnsentGrows

_NO_SLOTS: Final[Ints] = np.empty(0, dtype=np.int64)


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
        """max_context: positions, from 0, that a drafted token may have. max_depth, renews_root: as a Proposer has them."""
        self.original = original
        self.plan = plan
        self.stalled = False
        """True if nothing can be expanded before the proposer has been fed; the session table sets it."""
        self._max_depth = max_depth
        self._renews_root = renews_root
        self._expandable = ExpandableNodes(original.tree, limits, self._depth(), max_context)
        self._candidates = CandidatePool(original.tree, limits.push_survival, calibration)
        self._unsent = UnsentGrows()
        self._chosen: Ints = _NO_SLOTS
        """Nodes that are being expanded."""
        self._rounds = 0
        """Expansions since the last commit."""
        self._starved = False

    @property
    def resting(self) -> bool:
        """True if nothing more will come before the next commit, or the features that it is stalled for."""
        return not len(self._chosen) and not len(self.offers())

    def offers(self) -> Ints:
        """List the nodes that may be taken now, the likeliest first; none if none is worth it, or there is no place for its children."""
        if self.stalled or self._starved or len(self._chosen) or not self.plan.speculates:
            return _NO_SLOTS
        if not self.plan.draft_ahead and self._rounds >= self.plan.num_steps:
            return _NO_SLOTS
        return self._expandable.best(self.original.room)  # each is to get a child at least

    def take(self, slots: Ints) -> None:
        """Choose some of the offers; `expanded` or `postponed` must follow."""
        self._chosen = slots
        self._expandable.take(slots)

    def starve(self) -> None:
        """Rest until the next commit: there is no room for its nodes in the proposer."""
        self._starved = True

    def postponed(self) -> None:
        """Offer the root again: it was taken, but its context is not read yet."""
        self._chosen = _NO_SLOTS
        self._expandable.give_back_root()

    def expanded(self, children: Children) -> None:
        """Make candidates of the children of the nodes that were taken, and nodes of the likely ones."""
        self._candidates.add(self._chosen, children)
        self._chosen = _NO_SLOTS
        self._rounds += 1
        self._unsent.stir()  # if it rested, it was for want of features
        self._push()

    def replan(self, plan: Plan) -> None:
        """Grow under another plan from now on. The verifier is answered, if only that this rests."""
        self.plan = plan
        self._expandable.max_depth = self._depth()
        self._unsent.stir()
        self._push()

    def commit(self, commit: Commit) -> Advance:
        """Reroot, and learn from what was picked. Raises IllegalEvent if the commit does not follow the tree."""
        path = self.original.path_of(commit)
        self._unsent.seal()
        for slot, pick in zip((ROOT, *path), commit.tokens, strict=True):
            self._candidates.learn(slot, pick)
        moved = self.original.commit(commit).moved
        self._candidates.move(moved, renews_root=self._renews_root)
        if self._renews_root:
            self._expandable.give_back_root()
        self._rounds = 0
        self._starved = False
        self._push()  # survival has risen: what was too unlikely may not be now
        return Advance(commit.tokens, path, moved)

    def flush(self) -> list[Grow]:
        """Take what the verifier has not been told yet, in order: at most one grow per commit."""
        return self._unsent.take(self.original.commits, self.resting, whole=not self.plan.draft_ahead)

    def _push(self) -> None:
        """Make nodes of the candidates above the threshold, likeliest first, while there is room."""
        self._expandable.changed()
        new = self._candidates.take(self.original.room if self.plan.speculates else 0)
        if len(new.tokens):
            self._unsent.add(self.original.grow_at_once(new.parents, new.tokens, new.edges))

    def _depth(self) -> int:
        """Count the levels below the root that the tree may have."""
        plan = self.plan
        return min(2 * plan.num_steps + 1 if plan.draft_ahead else plan.num_steps, self._max_depth)


def choose(growths: Iterable[Growth], width: int, room: int) -> list[tuple[Growth, Ints]]:
    """Choose the likeliest nodes (slots, the likeliest first) to expand, at most `width`, at most `room` of them not a root.

    A session whose likeliest node finds no room is starved: it rests until its next commit.
    """
    offers = [(growth, slots) for growth in growths if len(slots := growth.offers())]
    if sum(len(slots) for _, slots in offers) > min(width, room):
        offers = _shared(offers, width, room)
    for growth, slots in offers:
        growth.take(slots)
    return offers


def _shared(offers: Sequence[tuple[Growth, Ints]], width: int, room: int) -> list[tuple[Growth, Ints]]:
    """Give each session its part of its offers, if that is anything. Roots come first: nothing is likelier."""
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
