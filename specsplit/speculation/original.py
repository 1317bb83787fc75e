"""The drafter's side: it owns the speculation, numbers its nodes and checks every commit against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specsplit.speculation.events import Commit, Grow, NewNode
from specsplit.speculation.states import Event, Protocol, Side, State
from specsplit.tree import Node, TokenTree


@dataclass(frozen=True, slots=True)
class Reroot:
    """What a commit did to the original."""

    path: tuple[Node, ...]
    """Accepted nodes, from below the old root down."""
    root: Node
    hit: bool
    """True if the new root was a node: its subtree survives."""


class Original:
    """One session's speculation, at its source. At most `max_nodes` live nodes, root not counted."""

    def __init__(self, session: int, root_token: int, root_position: int, max_nodes: int) -> None:
        self._protocol = Protocol(session, Side.ORIGINAL)
        self.tree = TokenTree(root_token, root_position)
        self.max_nodes = max_nodes
        self.commits = 0
        self._last_id = 0

    @property
    def state(self) -> State:
        """Where the protocol stands."""
        return self._protocol.state

    @property
    def room(self) -> int:
        """Nodes that may still be grown before the next commit."""
        return 0 if self.state is State.CLOSED else self.max_nodes - len(self.tree)

    def grow(self, nodes: Sequence[NewNode], resting: bool = False) -> Grow:
        """Add `nodes`, in order, and return the event to send. Ids are given here.

        Raises IllegalEvent if there is no room, a parent is not live, a score is not a log-probability at most its parent's, or the
        parent already has that token. Nothing is added then.
        """
        if nodes:
            self._protocol.advance(Event.GROW)
        if len(nodes) > self.room:
            self._protocol.refuse(
                Event.GROW, f"{len(nodes)} nodes, but only {self.room} of {self.max_nodes} places are free"
            )
        parents = [self._parent_of(node) for node in nodes]
        if len({(id(parent), node.token) for parent, node in zip(parents, nodes, strict=True)}) < len(nodes):
            self._protocol.refuse(Event.GROW, "the same token twice under one parent")
        root = self.tree.root
        grow = Grow(
            self.commits,
            tuple(range(self._last_id + 1, self._last_id + 1 + len(nodes))),
            tuple(0 if parent is root else parent.id for parent in parents),
            tuple(node.token for node in nodes),
            tuple(node.score for node in nodes),
            resting,
        )
        for parent, node, node_id in zip(parents, nodes, grow.ids, strict=True):
            self.tree.add(parent, node_id, node.token, node.score)
        self._last_id += len(nodes)
        if nodes and self.room == 0:
            self._protocol.advance(Event.FILL)
        return grow

    def _parent_of(self, node: NewNode) -> Node:
        tree = self.tree
        parent = tree.root if node.parent in (0, tree.root.id) else tree.nodes.get(node.parent)
        if parent is None:
            self._protocol.refuse(Event.GROW, f"parent {node.parent} is not live")
        if node.token in parent.children:
            self._protocol.refuse(Event.GROW, f"node {parent.id} already has a child with token {node.token}")
        if math.isnan(node.score) or node.score > parent.score:
            self._protocol.refuse(Event.GROW, f"score {node.score} is not at most its parent's {parent.score}")
        return parent

    def commit(self, commit: Commit) -> Reroot:
        """Reroot. Raises IllegalEvent if the commit is out of order or does not follow a path of this tree."""
        if self.state is State.CLOSED:
            return Reroot((), self.tree.root, False)
        if commit.number != self.commits + 1:
            self._protocol.refuse(Event.COMMIT, f"its number is {commit.number}, expected {self.commits + 1}")
        deepest = self.tree.root if commit.deepest == 0 else self.tree.nodes.get(commit.deepest)
        if deepest is None:
            self._protocol.refuse(Event.COMMIT, f"deepest node {commit.deepest} is not live")
        path = tuple(deepest.path())
        if tuple(node.token for node in path) != tuple(commit.tokens[:-1]):
            derived = [node.token for node in path]
            self._protocol.refuse(
                Event.COMMIT,
                f"committed tokens {list(commit.tokens[:-1])} are not the path {derived} to node {commit.deepest}",
            )
        self._protocol.advance(Event.COMMIT)
        self.commits += 1
        hit = self.tree.reroot(deepest, commit.bonus)
        return Reroot(path, self.tree.root, hit)

    def close(self) -> None:
        """End the session here; later commits are let pass."""
        self._protocol.advance(Event.CLOSE)
