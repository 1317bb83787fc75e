"""A token tree: one root, nodes below it, cheap to grow at the leaves and to reroot in the middle.

The worked example of docs/tree.md, committed `the cat`, root `cat`:

    cat ─ 1 sat ─ 3 on ─ 5 the ─ 7 mat
        │       └ 4 in
        └ 2 is  ─ 6 a

Scores are natural logs of survival. They are counted from the last root that was not itself a node, and are never rebased when the
tree is rerooted: the survival of a node *now* is its score less the root's. So a score is written once, and two copies of a tree can
be compared bit by bit.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Iterator


class Node:
    """One drafted token, or the root."""

    # By hand, and not as a dataclass: a verifier makes a few hundred in every step.
    __slots__ = ("children", "id", "parent", "position", "ranked", "score", "token")

    def __init__(self, id: int, token: int, score: float, position: int, parent: Node | None = None) -> None:  # noqa: A002
        self.id = id
        """0 for a root that was never a node."""
        self.token = token
        self.score = score
        """Log-survival, <= the parent's."""
        self.position = position
        """Index of the token in the session's whole sequence, from 0."""
        self.parent = parent
        self.children: dict[int, Node] = {}
        """By token: a parent never has the same token twice."""
        self.ranked: list[Node] = []
        """The children, likeliest first; of equals the first to come."""

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one; empty for the root."""
        found: list[Node] = []
        node = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def descendants(self) -> Iterator[Node]:
        """Every node below this one, level by level."""
        level = [self]
        while level := [child for node in level for child in node.ranked]:
            yield from level


class TokenTree:
    """A root and the live nodes below it."""

    def __init__(self, token: int, position: int) -> None:
        self.root = Node(0, token, 0.0, position)
        self.nodes: dict[int, Node] = {}

    def __len__(self) -> int:
        """Live nodes, root not counted."""
        return len(self.nodes)

    def add(self, parent: Node, node_id: int, token: int, score: float) -> Node:
        """Hang a node below `parent`, which must be live and must not have a child with that token yet."""
        node = Node(node_id, token, score, parent.position + 1, parent)
        parent.children[token] = node
        if parent.ranked and parent.ranked[-1].score < score:
            insort(parent.ranked, node, key=lambda child: -child.score)
        else:  # children come likeliest first
            parent.ranked.append(node)
        self.nodes[node_id] = node
        return node

    def reroot(self, deepest: Node, bonus: int) -> bool:
        """Make the child of `deepest` with token `bonus` the root; a fresh root if there is none. True if there was one (a hit)."""
        heir = deepest.children.pop(bonus, None)
        if heir is not None:
            deepest.ranked.remove(heir)
        _uproot(self.root)
        if heir is None:
            self.root = Node(0, bonus, 0.0, deepest.position + 1)
            self.nodes = {}
            return False
        heir.parent = None
        self.root = heir
        self.nodes = {node.id: node for node in heir.descendants()}
        return True

    def survival(self, node: Node) -> float:
        """Log of the estimated probability that `node` is accepted, given the root."""
        return node.score - self.root.score

    def best(self, count: int, topk: int, depth: int) -> list[Node]:
        """The root and the best-scored nodes, `count` in all at most, parents before children.

        At most `topk` children of one node and `depth` levels below the root are considered. A child never outscores its parent, so
        taking the best one at a time from the frontier is optimal (the argument of EAGLE-2, arXiv 2406.16858).
        """
        taken = [self.root]
        limit = self.root.position + depth
        frontier: list[tuple[float, int, list[Node], int]] = []
        newest = self.root
        while len(taken) < count:
            if newest.position < limit and newest.ranked:
                _offer(frontier, newest.ranked, 0)
            if not frontier:
                break
            _, _, siblings, place = heapq.heappop(frontier)
            newest = siblings[place]
            taken.append(newest)
            if place + 1 < min(topk, len(siblings)):
                _offer(frontier, siblings, place + 1)
        return taken

    def snapshot(self) -> tuple[int, int, dict[int, tuple[int, int, float]]]:
        """(root id, root token, {id: (parent id, token, score)}): equal for equal trees."""
        described = {n.id: (n.parent.id if n.parent else 0, n.token, n.score) for n in self.nodes.values()}
        return self.root.id, self.root.token, described


def _uproot(root: Node) -> None:
    """Take a dead tree apart: free of cycles its nodes are free at once, and none waits for the garbage collector."""
    inner = [root]
    while inner:
        below = [child for node in inner for child in node.ranked if child.ranked]
        for node in inner:
            node.children, node.ranked = {}, []
        inner = below


def _offer(frontier: list[tuple[float, int, list[Node], int]], siblings: list[Node], place: int) -> None:
    """Put one child on the heap; the next likeliest of its siblings follows when it is taken."""
    node = siblings[place]
    heapq.heappush(frontier, (-node.score, node.id, siblings, place))


def expected_drafts(survivals: list[float]) -> float:
    """Expected num_correct_drafts of a step over nodes with these log-survivals: the sum of their probabilities."""
    return math.fsum(math.exp(s) for s in survivals)
