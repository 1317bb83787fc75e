"""The drafter's side: it owns the speculation, numbers its nodes and checks every commit against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from specsplit.speculation.events import Commit, Grow
from specsplit.speculation.states import Event, Side, State, StateMachine
from specsplit.tree import ROOT, Ints, Scores, TokenTree, are_edges, as_sent


@dataclass(frozen=True, slots=True)
class Reroot:
    """What a commit did to the original."""

    path: Sequence[int]
    """Ids of the accepted nodes, from below the old root down."""
    root: int
    """Id of the new root; 0 if it was no node."""
    new_slots: Ints | None
    """The new slot of every old one [n], -1 for the dead. None after a miss: nothing survives."""

    @property
    def hit(self) -> bool:
        """True if the new root was a node: its subtree survives."""
        return self.new_slots is not None


class Original:
    """One session's speculation, at its source. At most `max_nodes` live nodes, root not counted."""

    def __init__(self, session: int, root_token: int, root_position: int, max_nodes: int) -> None:
        self._machine = StateMachine(session, Side.ORIGINAL)
        self.tree = TokenTree(root_token, root_position)
        self.max_nodes = max_nodes
        self.commits = 0
        self._last_id = 0

    @property
    def state(self) -> State:
        """State of the protocol on this side."""
        return self._machine.state

    @property
    def free_nodes(self) -> int:
        """Nodes that may still be grown before the next commit."""
        return 0 if self.state is State.CLOSED else self.max_nodes - len(self.tree)

    def grow(self, parents: Ints, tokens: Ints, edges: Scores) -> Grow:
        """Add nodes, given as columns [n], in order, and return the event to send. Ids are given here.

        Parents are slots of the tree, or of nodes that come before their children: the slots from `len(tree) + 1` on.
        Raises IllegalEvent if there is no room, an edge is no log-probability, or a parent has a token twice. Nothing is added then.
        """
        self._begin(len(parents))
        ids = np.arange(self._last_id + 1, self._last_id + 1 + len(parents))
        known = len(self.tree)
        named = np.where(parents == ROOT, 0, self.tree.ids.take(np.minimum(parents, known)))
        named = np.where(parents > known, self._last_id + parents - known, named).tolist()
        edges = as_sent(edges)
        if not self.tree.extend(ids, parents, tokens, edges):
            self._refuse(parents, tokens, edges)
        self._end(len(parents))
        return Grow(self.commits, ids.tolist(), named, tokens.tolist(), edges.tolist())

    def rescore(self, slots: Ints, edges: Scores) -> Grow:
        """Give live nodes [n], slots of the tree that ascend, other edges, and return the event to send.

        Raises IllegalEvent, and nothing has changed, if one is the root, or an edge is no log-probability.
        """
        self._machine.advance(Event.RESCORE)
        edges = as_sent(edges)
        if not are_edges(edges) or (len(slots) and slots[0] == ROOT):
            self._machine.refuse(Event.RESCORE, "an edge is not at most 0, or is the root's")
        self.tree.rescore(slots, edges)
        return Grow(self.commits, rescored=self.tree.ids.take(slots).tolist(), new_edges=edges.tolist())

    def _begin(self, count: int) -> None:
        if count:
            self._machine.advance(Event.GROW)
        if count > self.free_nodes:
            self._machine.refuse(
                Event.GROW, f"{count} nodes, but only {self.free_nodes} of {self.max_nodes} places are free"
            )

    def _end(self, count: int) -> None:
        self._last_id += count
        if count and self.free_nodes == 0:
            self._machine.advance(Event.FILL)

    def _check(self, parent: int, token: int, edge: float) -> None:
        if self.tree.child(parent, token) is not None:
            self._machine.refuse(Event.GROW, f"node {self.tree.id_of(parent)} already has a child with token {token}")
        if not edge <= 0.0:
            self._machine.refuse(Event.GROW, f"edge {edge} is not at most 0")

    def _refuse(self, parents: Ints, tokens: Ints, edges: Scores) -> NoReturn:
        for columns in zip(parents.tolist(), tokens.tolist(), edges.tolist(), strict=True):
            self._check(*columns)
        self._machine.refuse(Event.GROW, "the same token twice under one parent")

    def path_of(self, commit: Commit) -> list[int]:
        """List the slots of the nodes that a commit accepts.

        Raises IllegalEvent if it is out of order or does not follow a path of this tree.
        """
        if commit.number != self.commits + 1:
            self._machine.refuse(Event.COMMIT, f"its number is {commit.number}, expected {self.commits + 1}")
        deepest = ROOT if commit.deepest == 0 else self.tree.find(commit.deepest)
        if deepest is None or (deepest == ROOT and commit.deepest):
            self._machine.refuse(Event.COMMIT, f"deepest node {commit.deepest} is not live")
        path = self.tree.path(deepest)
        derived = [self.tree.token_of(slot) for slot in path]
        if derived != list(commit.tokens[:-1]):
            self._machine.refuse(
                Event.COMMIT,
                f"committed tokens {list(commit.tokens[:-1])} are not the path {derived} to node {commit.deepest}",
            )
        return path

    def commit(self, commit: Commit) -> Reroot:
        """Reroot to the bonus of a commit. Raises IllegalEvent as `path_of` does."""
        if self.state is State.CLOSED:
            return Reroot((), self.tree.root_id, None)
        path = self.path_of(commit)
        self._machine.advance(Event.COMMIT)
        self.commits += 1
        accepted = tuple(self.tree.id_of(slot) for slot in path)
        new_slots = self.tree.reroot(path[-1] if path else ROOT, commit.bonus)
        return Reroot(accepted, self.tree.root_id, new_slots)

    def close(self) -> None:
        """End the session here; later commits are let pass."""
        self._machine.advance(Event.CLOSE)
