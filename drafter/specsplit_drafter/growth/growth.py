"""The policy by which the tree of one session grows, and by which the nodes of all sessions are chosen for expansion. Pure.

The next root is almost always a node that was not verified in the step before: a sibling of those that were. So breadth counts more than
depth: all children of an expanded node stay candidates, those that are worth what sending them costs are pushed, the likeliest pushed
nodes of all sessions are expanded together in wide batches, and it goes on, while the verifier works on a step, until no node is left
above the floor.

What a session has grown is in one tree, the original's; all that is known of a node is in columns of it. Sessions are independent but for
`choose`, which fills one expansion with the likeliest nodes of them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from specsplit.speculation import Commit, Grow, Original
from specsplit.tree import ROOT, Flags, Ints, Scores
from specsplit.values import Plan
from specsplit_drafter.drafts.calibration import DISTANCES, DistanceCalibration
from specsplit_drafter.drafts.proposer import UNBOUNDED, AppliedCommit, Children, DrawnLevel, Scoring, WholeTree
from specsplit_drafter.growth.candidates import CandidatePool
from specsplit_drafter.growth.cost import FREE, LinearCost, best_width
from specsplit_drafter.growth.cost_benefit import CostBenefit
from specsplit_drafter.growth.expandable import ExpandableNodes
from specsplit_drafter.growth.placement import PlacementLimits
from specsplit_drafter.growth.unsent import UnsentGrows

_NO_SLOTS: Final[Ints] = np.empty(0, dtype=np.int64)


class Growth:
    """One session's original, with its candidates and its nodes to expand. A node is named by its slot in the tree."""

    def __init__(
        self,
        original: Original,
        plan: Plan,
        width: int,
        cost_benefit: CostBenefit,
        calibration: DistanceCalibration,
        max_context: int,
        *,
        max_depth: int = UNBOUNDED,
        redraws: bool = False,
        shares_root: bool = False,
        drafts_blocks: bool = False,
        held: bool = False,
    ) -> None:
        """width: nodes in one expansion at most. max_context: positions, from 0, that a drafted token may have.

        max_depth, redraws, shares_root, drafts_blocks: as a Proposer has them. held: the output is held to a constraint.
        """
        self.original = original
        self.plan = plan
        self.cost_benefit = cost_benefit
        self.stalled = False
        """True if nothing can be expanded before the proposer has more features; the session table sets it."""
        self._max_depth = max_depth
        self._redraws = redraws
        self._candidate_pool = CandidatePool(original.tree, calibration, cost_benefit.usage, held=held)
        self._expandable = ExpandableNodes(
            original.tree, width, self._depth(), max_context, shares_root=shares_root, any_order=drafts_blocks
        )
        self._unsent = UnsentGrows()
        self._chosen: Ints = _NO_SLOTS
        """Nodes that are being expanded."""
        self._expansions = 0
        """Expansions since the last commit."""
        self._resting_until_commit = False

    @property
    def resting(self) -> bool:
        """True if nothing more will come before the next commit, or the features that it is stalled for."""
        return not len(self._chosen) and not len(self.offers())

    def offers(self) -> Ints:
        """List the nodes that may be taken now, likeliest first; none if none is above the floor, or there is no place for children."""
        if self.stalled or self._resting_until_commit or len(self._chosen) or not self.plan.speculates:
            return _NO_SLOTS
        if not self.plan.draft_ahead and self._expansions >= self._levels():
            return _NO_SLOTS
        return self._expandable.best(self.original.free_nodes)  # each is to get a child at least

    def levels_below(self, slots: Ints) -> int:
        """Count the levels that one expansion of offers may draw, their own counted."""
        deep = self._expandable.deepest - int(self.original.tree.positions.take(slots).min())
        return max(1, deep if self.plan.draft_ahead else min(deep, self._levels() - self._expansions))

    def scoring(self, slots: Ints, width: int) -> Scoring:
        """Make the scoring of the levels below offers, of `width` nodes each."""
        return Scoring(
            scores=self.original.tree.log_survivals(slots),
            distances=self._distances(slots, 0),
            shifts=self._candidate_pool.shifts,
            floor=math.log(self.cost_benefit.floor),
            deepest=self._expandable.deepest,
            width=width,
        )

    def take(self, slots: Ints) -> None:
        """Choose some of the offers; `add_children` or `postpone` must follow."""
        self._chosen = slots
        self._expandable.take(slots)

    def needs_kv_slot(self, slots: Ints) -> Flags:
        """Tell which of these need a KV slot of the proposer [n]: those that were never taken."""
        return self._expandable.never_taken(slots) & (slots != ROOT)

    def rest_until_commit(self) -> None:
        """Offer nothing until the next commit: the proposer has no room for these nodes, or an expansion of them does not pay."""
        self._resting_until_commit = True

    def postpone(self) -> None:
        """Offer the root again, and the nodes taken with it, since its context is not read yet."""
        self._expandable.put_back(self._chosen)
        self._chosen = _NO_SLOTS

    def add_children(self, children: Children) -> list[Ints]:
        """Make candidates of the children of the nodes that were taken, and nodes of the likely ones -> slots by level drawn below them.

        The slots of a level are those of its nodes [n]; -1 for those that are no nodes, or were expanded before. Levels without any node
        are left out. Raises ValueError if these are not the children of as many nodes.
        """
        slots, self._chosen = self._chosen, _NO_SLOTS
        self._unsent.mark_busy()  # if it rested, it waited for features
        self._expansions += 1
        self._add_level(slots, children, 0)
        kept: list[Ints] = []
        for number, level in enumerate(children.levels, 1):
            slots = self._slots_of_level(slots, level)
            rows = (slots >= 0).nonzero()[0]
            if not len(rows):
                break
            if not self._expandable.any_order:
                self._expandable.take(slots.take(rows))
                self._expansions += 1
            self._add_level(slots.take(rows), level.children.at(rows), number)
            kept.append(slots)
        self._expandable.max_depth = self._depth()
        return kept

    def add_tree(self, drawn: WholeTree) -> None:
        """Make nodes of what was drawn below the root, which was taken, and give new edges to those that are nodes already."""
        self._chosen = _NO_SLOTS
        self._expansions += 1
        self._unsent.mark_busy()
        limits = PlacementLimits(math.log(self.cost_benefit.step_floor), self._levels(), self.original.free_nodes)
        placed = self._candidate_pool.place(drawn, limits)
        if len(placed.rescored.slots):
            self._unsent.add(self.original.rescore(*placed.rescored))
        if len(placed.tokens):
            self._unsent.add(self.original.grow(placed.parents, placed.tokens, placed.edges))
        self._candidate_pool.expanded(placed.slots, placed.rows, drawn.children)
        self._expandable.max_depth = self._depth()

    def _distances(self, slots: Ints, level: int) -> Ints:
        """Find by what distance nodes are calibrated that are drawn so many levels below those of an expansion.

        Behind a block's own token, by the tokens before that have no features yet; behind masks, by how many they are.
        """
        if not self._expandable.any_order:
            return self._candidate_pool.distances(slots)
        if level:
            return np.full(len(slots), DISTANCES - 1 + level)
        tree = self.original.tree
        return np.minimum(tree.positions.take(slots) - tree.root_position, DISTANCES - 1)

    def _add_level(self, slots: Ints, children: Children, level: int) -> None:
        if len(children.tokens) != len(slots):
            raise ValueError(f"children of {len(children.tokens)} nodes, expected those of {len(slots)}")
        rescored = self._candidate_pool.add(slots, children, self._distances(slots, level))
        if len(rescored.slots):
            self._unsent.add(self.original.rescore(*rescored))
        self._push()

    def _slots_of_level(self, above: Ints, level: DrawnLevel) -> Ints:
        """Find the slots [n] of the nodes of a level below nodes with these slots; -1 for those that are not to be expanded."""
        parents = above.take(level.parents)
        slots = self.original.tree.children(parents, level.tokens)
        return np.where((slots >= 0) & self._expandable.takeable(slots), slots, -1)

    def set_plan(self, plan: Plan) -> None:
        """Grow under another plan from now on. The verifier gets an answer, at least that this rests."""
        self.plan = plan
        self._expandable.max_depth = self._depth()
        self._unsent.reset_spacing()
        self._push()

    def commit(self, commit: Commit) -> AppliedCommit:
        """Reroot, and learn from what was picked. Raises IllegalEvent if the commit does not follow the tree."""
        path = self.original.path_of(commit)
        ahead = self.resting
        self._unsent.seal()
        for slot, pick in zip((ROOT, *path), commit.tokens, strict=True):
            self._candidate_pool.learn(slot, pick)
        new_slots = self.original.commit(commit).new_slots
        self.cost_benefit.set_step_time(commit.step_us)
        self.cost_benefit.told_floor = commit.floor
        self.cost_benefit.observe_commit(len(commit.tokens), hit=new_slots is not None)
        self._candidate_pool.remap(new_slots, redraws_root=self._redraws)
        if self._redraws:
            # A session that had nothing left to draw has time to spare: it draws nothing more from old states.
            self._expandable.put_back_all(parents_first=ahead)
        self._expansions = 0
        self._resting_until_commit = False
        self._expandable.max_depth = self._depth()
        self._push()  # survival has risen: what was too unlikely may not be now
        return AppliedCommit(commit.tokens, path, new_slots)

    def flush(self, now: float) -> list[Grow]:
        """Take the grows that are to be sent now, in order: at most one per commit."""
        whole = not self.plan.draft_ahead
        return self._unsent.take(self.original.commits, self.resting, now, self.cost_benefit.window_s, whole=whole)

    def _push(self) -> None:
        """Make nodes of the candidates above the floor, likeliest first, while there is room."""
        floor = math.log(self.cost_benefit.floor)
        self._expandable.invalidate(floor)
        new = self._candidate_pool.take(self.original.free_nodes if self.plan.speculates else 0, floor)
        if len(new.tokens):
            self._unsent.add(self.original.grow(new.parents, new.tokens, new.edges))

    def _depth(self) -> int:
        """Count the levels below the root that nodes may be expanded at."""
        return min(self._levels(), self._max_depth)

    def _levels(self) -> int:
        """Count the levels below the root that the plan asks for, and those that are forced as far as a step has room for all of them."""
        num_steps, room = self.plan.num_steps, self.plan.num_draft_tokens - 1
        if self.plan.draft_ahead:
            return 2 * num_steps + 1
        return max(num_steps, min(num_steps + self._candidate_pool.forced_levels(), room))


class Offer(NamedTuple):
    """The nodes that one session offers for expansion."""

    growth: Growth
    slots: Ints
    """The likeliest first."""

    @property
    def gains(self) -> Scores:
        """Seconds of the verifier that the children of each save, if every node has a certain one [n]."""
        return np.exp(self.growth.original.tree.log_survivals(self.slots)) * self.growth.cost_benefit.token_s

    def pays(self, saved_s: float, expansion_s: float) -> bool:
        """Tell whether such an expansion pays. One of a root always does, and so do all where the verifier waits for the whole tree."""
        required = self.slots[0] == ROOT or not self.growth.plan.draft_ahead
        return required or self.growth.cost_benefit.pays(saved_s, expansion_s)


def choose(
    growths: Iterable[Growth], width: int, free_kv_slots: int, cost: LinearCost = FREE
) -> list[tuple[Growth, Ints]]:
    """Choose the nodes (slots, likeliest first) to expand, as many as gain the most per second of an expansion.

    They are at most `width`, and at most `free_kv_slots` of them no roots. There are none if all of them together do not pay. A session
    whose likeliest node gets no KV slot, or does not pay, rests until its next commit.
    """
    offers = [Offer(growth, slots) for growth in growths if len(slots := growth.offers())]
    if not offers:
        return []
    gains = np.concatenate([offer.gains for offer in offers])
    gains[::-1].sort()
    width = min(width, best_width(gains, cost))
    if not any(offer.pays(float(gains[:width].sum()), cost.seconds(width)) for offer in offers):
        for offer in offers:
            offer.growth.rest_until_commit()
        return []
    if len(gains) > min(width, free_kv_slots):
        offers = _split(offers, width, free_kv_slots)
    for growth, slots in offers:
        growth.take(slots)
    return [*offers]


def _split(offers: Sequence[Offer], width: int, free_kv_slots: int) -> list[Offer]:
    """Split the chosen nodes by session; sessions without any are left out. Roots come first: nothing is likelier."""
    owners = np.arange(len(offers)).repeat([len(offer.slots) for offer in offers])
    slots = np.concatenate([offer.slots for offer in offers])
    takes = np.concatenate([offer.growth.needs_kv_slot(offer.slots) for offer in offers])
    order = np.lexsort(
        (-np.concatenate([offer.gains for offer in offers]), slots != ROOT)
    )  # stable: of equals the first session's
    fits = ~takes[order] | (takes[order].cumsum() <= free_kv_slots)
    chosen = order[fits][:width]
    if len(chosen) < width:
        for number in set(owners[order[~fits]].tolist()) - set(owners[chosen].tolist()):
            offers[number].growth.rest_until_commit()
    shares = [slots[chosen[owners[chosen] == number]] for number in range(len(offers))]
    return [Offer(offer.growth, share) for offer, share in zip(offers, shares, strict=True) if len(share)]
