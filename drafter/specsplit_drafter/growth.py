"""Which node to expand next, which candidates to push: a pure policy over the trees of all sessions.

The next root is almost always a node that was not verified in the step before: a sibling of those that were. So breadth counts more than
depth: all children of an expanded node stay candidates, those whose survival is above a threshold are pushed, the likeliest pushed nodes
of all sessions are expanded together in wide batches, and it goes on while the verifier works on a step. A candidate below the
threshold is not lost: when a commit makes the root one of its ancestors, its survival rises, and it may be pushed without another forward.

Sessions are independent but for `choose`, which fills one expansion with the likeliest nodes of them all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specsplit.speculation import Commit, Grow, NewNode, Original
from specsplit.tree import Node
from specsplit.values import Plan
from specsplit_drafter.calibration import Calibration, FloatArray
from specsplit_drafter.proposer import UNBOUNDED, Advance, Children


@dataclass(frozen=True)
class GrowthLimits:
    """Where growing stops."""

    expand_width: int = 64
    """Nodes in one expansion, all sessions together."""
    expand_survival: float = 0.002
    """A node less likely than this to be accepted is not expanded."""
    push_survival: float = 0.002
    """A candidate less likely than this to be accepted is not pushed."""


@dataclass(slots=True, eq=False)
class _Brood:
    """Candidate children of one expanded node; those before `next` are nodes, and of a renewed root others may be."""

    node: Node
    tokens: list[int]
    scores: list[float]
    """Descending, as they travel: float32, at most the parent's."""
    raw: FloatArray
    """The draft's own log-probabilities, for calibration."""
    next: int = 0

    def has_next(self) -> bool:
        """True if a candidate is left; `next` is then the likeliest that is no node."""
        while self.next < len(self.tokens) and self.tokens[self.next] in self.node.children:
            self.next += 1
        return self.next < len(self.tokens)


class Growth:
    """One session's speculation at its source, and what may still become of it."""

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
        self._push_floor = math.log(limits.push_survival)
        self._expand_floor = math.log(limits.expand_survival)
        self._calibration = calibration
        self._max_context = max_context
        self._depth_limit = min(2 * plan.num_steps + 1 if plan.draft_ahead else plan.num_steps, max_depth)
        self._renews_root = renews_root
        self._broods: dict[int, _Brood] = {}
        self._candidates: list[tuple[float, int, _Brood]] = []
        self._unexpanded: list[tuple[float, int, Node]] = [_ranked(original.tree.root)]
        self._too_deep: list[tuple[float, int, Node]] = []
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
        return self._chosen == 0 and self.head is None

    @property
    def head(self) -> float | None:
        """Log-survival of the likeliest node to expand; None if there is none worth it, or no place for its children."""
        if self.stalled or self._starved or self._root_chosen or not self.plan.speculates:
            return None
        if self._chosen >= self.original.room and not self.root_is_next:
            return None
        if not self.plan.draft_ahead and self._rounds >= self.plan.num_steps:
            return None
        self._set_aside_the_too_deep()
        if not self._unexpanded:
            return None
        survival = self.original.tree.survival(self._unexpanded[0][2])
        return survival if survival >= self._expand_floor else None

    @property
    def root_is_next(self) -> bool:
        """True if the head is the root itself."""
        return bool(self._unexpanded) and self._unexpanded[0][2] is self.original.tree.root

    def take(self) -> Node:
        """The head, which must not be None; `expanded` or `postponed` must follow."""
        self._chosen += 1
        self._root_chosen = self.root_is_next
        return heapq.heappop(self._unexpanded)[2]

    def starve(self) -> None:
        """Rest until the next commit: there is no room for its nodes in the proposer."""
        self._starved = True

    def postponed(self, node: Node) -> None:
        """The root was taken, but its context is not read yet: it stays the head."""
        self._chosen -= 1
        self._root_chosen = False
        heapq.heappush(self._unexpanded, _ranked(node))

    def expanded(self, expansions: Sequence[tuple[Node, Children]]) -> None:
        """Nodes that were taken have been expanded, all in one round: their children are candidates now, the likely ones nodes."""
        self._chosen -= len(expansions)
        self._root_chosen = self._told_resting = False  # if it rested, it was for want of features
        for brood in _broods(expansions, self._calibration):
            self._broods[brood.node.id] = brood
            if brood.has_next():
                heapq.heappush(self._candidates, (-brood.scores[brood.next], brood.node.id, brood))
        self._rounds += 1
        self.push()

    def push(self) -> None:
        """Make nodes of the candidates above the threshold, likeliest first, while there is room."""
        new: list[NewNode] = []
        floor = self.original.tree.root.score + self._push_floor
        room = self.original.room if self.plan.speculates else 0
        while self._candidates and len(new) < room and -self._candidates[0][0] >= floor:
            _, node_id, brood = self._candidates[0]
            new.append(NewNode(node_id, brood.tokens[brood.next], brood.scores[brood.next]))
            brood.next += 1
            if brood.has_next():
                heapq.heapreplace(self._candidates, (-brood.scores[brood.next], node_id, brood))
            else:
                heapq.heappop(self._candidates)
        if new:
            self._add(new)

    def commit(self, commit: Commit) -> Advance:
        """Reroot, and learn from what was picked. Raises IllegalEvent if the commit does not follow the tree."""
        old_root = self.original.tree.root
        reroot = self.original.commit(commit)
        if self._unsent:  # made before this commit: the mirror must be able to tell
            self._sealed.append(Grow.merge(self._unsent))
            self._unsent = []
        for node, pick in zip((old_root, *reroot.path), commit.tokens, strict=True):
            self._learn(self._broods.get(node.id), pick)
        self._forget_the_dead(reroot.hit)
        self._rounds = 0
        self._starved = self._told_resting = False
        self.push()  # survival has risen: what was too unlikely may not be now
        tree = self.original.tree
        return Advance(tuple(commit.tokens), [node.id for node in reroot.path], tree.root.id, tree.nodes.keys())

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

    def _add(self, new: Sequence[NewNode]) -> None:
        grow = self.original.grow(new)
        self._unsent.append(grow)
        nodes = self.original.tree.nodes
        for node_id in grow.ids:
            heapq.heappush(self._unexpanded, _ranked(nodes[node_id]))

    def _set_aside_the_too_deep(self) -> None:
        deepest = min(self.original.tree.root.position + self._depth_limit, self._max_context - 1)
        while self._unexpanded and self._unexpanded[0][2].position >= deepest:
            self._too_deep.append(heapq.heappop(self._unexpanded))

    def _learn(self, brood: _Brood | None, pick: int) -> None:
        if brood is not None and brood.tokens:
            self._calibration.observe(brood.raw, brood.tokens.index(pick) if pick in brood.tokens else None)

    def _forget_the_dead(self, hit: bool) -> None:
        tree = self.original.tree
        if not hit:
            self._broods, self._candidates, self._too_deep = {}, [], []
            self._unexpanded = [_ranked(tree.root)]
            return
        live = tree.nodes.keys() | {tree.root.id}
        self._broods = {node_id: brood for node_id, brood in self._broods.items() if node_id in live}
        self._unexpanded = [entry for entry in (*self._unexpanded, *self._too_deep) if entry[1] in live]
        self._too_deep = []
        if self._renews_root:
            self._renew(tree.root)
            live = tree.nodes.keys()  # the root's own candidates give way to those that its expansion brings
        self._candidates = [entry for entry in self._candidates if entry[1] in live]
        heapq.heapify(self._candidates)
        heapq.heapify(self._unexpanded)

    def _renew(self, root: Node) -> None:
        """Let the root be expanded, as well if it has been as a node."""
        if all(node is not root for _, _, node in self._unexpanded):
            self._unexpanded.append(_ranked(root))


def choose(growths: Iterable[Growth], width: int, room: int) -> list[tuple[Growth, Node]]:
    """The likeliest nodes to expand, at most `width`, at most `room` of them not a root.

    A session whose head finds no room is starved: it rests until its next commit.
    """
    heads = [(-head, number, growth) for number, growth in enumerate(growths) if (head := growth.head) is not None]
    heapq.heapify(heads)
    chosen: list[tuple[Growth, Node]] = []
    while heads and len(chosen) < width:
        _, number, growth = heads[0]
        if not growth.root_is_next:
            if room <= 0:
                growth.starve()
                heapq.heappop(heads)
                continue
            room -= 1
        chosen.append((growth, growth.take()))
        head = growth.head
        if head is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (-head, number, growth))
    return chosen


def _ranked(node: Node) -> tuple[float, int, Node]:
    return (-node.score, node.id, node)


def _broods(expansions: Sequence[tuple[Node, Children]], calibration: Calibration) -> list[_Brood]:
    """Candidates of all these nodes, calibrated in one go."""
    raw = np.concatenate([children.log_probabilities for _, children in expansions])
    counts = [len(children.tokens) for _, children in expansions]
    own = np.repeat(np.array([node.score for node, _ in expansions]), counts)
    scores = np.minimum((own + calibration.log_probabilities(raw)).astype(np.float32), own.astype(np.float32)).tolist()
    broods: list[_Brood] = []
    start = 0
    for (node, children), count in zip(expansions, counts, strict=True):
        # Likeliest first: what the session's filters forbid (log of zero) stands at the end.
        possible = int(np.isfinite(children.log_probabilities).sum())
        tokens = children.tokens.tolist()[:possible]
        broods.append(_Brood(node, tokens, scores[start : start + possible], children.log_probabilities[:possible]))
        start += count
    return broods
