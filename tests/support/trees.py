"""Trees as those see them who look: nodes that are objects of their own, made when they are asked for; and nodes grown by ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from specsplit.speculation import Grow, Original
from specsplit.tree import ROOT, TokenTree


@dataclass(frozen=True, slots=True)
class Node:
    """One node, or the root, as it was when somebody looked. What hangs below it can be asked for until the next reroot."""

    tree: TokenTree = field(repr=False)
    id: int
    """0 for a root that was never a node."""
    token: int
    score: float
    """Its parent's, and its edge."""
    position: int
    """Index of the token in the session's whole sequence, from 0."""
    parent: Node | None = field(default=None, compare=False, repr=False)

    @property
    def children(self) -> dict[int, Node]:
        """By token, likeliest first; of equals the first to come."""
        slot, seen = self.tree.slot(self.id), Seen(self.tree)
        return {node.token: node for node in (seen.look(below, self) for below in seen.family().get(slot, ()))}

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
        seen = Seen(self.tree)
        family = seen.family()
        level = {self.tree.slot(self.id): self}
        while level := {slot: seen.look(slot, node) for above, node in level.items() for slot in family.get(above, ())}:
            yield from level.values()


@dataclass(frozen=True, slots=True)
class Seen:
    """A tree, to look at."""

    tree: TokenTree

    @property
    def root(self) -> Node:
        return self.look(ROOT, None)

    @property
    def nodes(self) -> dict[int, Node]:
        """The live nodes by id."""
        return {node.id: node for node in sorted(self.root.descendants(), key=lambda node: node.id)}

    def look(self, slot: int, parent: Node | None) -> Node:
        """Make the Node of a slot; `parent` is the one of the slot above it."""
        tree = self.tree
        score, position = float(tree.scores[slot]), int(tree.positions[slot])
        return Node(tree, tree.id_of(slot), tree.token_of(slot), score, position, parent)

    def family(self) -> dict[int, list[int]]:
        """List every node's children, slots by slot, likeliest first, of equals the first to come."""
        family: dict[int, list[int]] = {}
        scores, parents = self.tree.scores.tolist(), self.tree.parents.tolist()
        for slot in sorted(range(1, len(parents)), key=lambda slot: -scores[slot]):
            family.setdefault(parents[slot], []).append(slot)
        return family

    def snapshot(self) -> tuple[int, int, dict[int, tuple[int, int, float]]]:
        """Describe the tree as (root id, root token, {id: (parent id, token, edge)}), which is equal for equal trees."""
        tree = self.tree
        ids = tree.ids.tolist()
        rows = zip(ids, tree.parents.tolist(), tree.tokens.tolist(), tree.edges.tolist(), strict=True)
        described = {node_id: (ids[parent], token, edge) for node_id, parent, token, edge in rows if parent >= 0}
        return tree.root_id, tree.token_of(ROOT), described


class NewNode(NamedTuple):
    """A node to be."""

    parent: int
    """Id of a live node; 0, or the root's own id, is the root."""
    token: int
    edge: float


def grow_nodes(original: Original, nodes: Sequence[NewNode], resting: bool = False) -> Grow:
    """Have a drafter's side add nodes, none of them below another, and give the event to send."""
    if not nodes:
        return Grow(original.commits, resting=resting)
    parents = np.array([ROOT if node.parent == 0 else original.tree.slot(node.parent) for node in nodes])
    tokens, edges = np.array([node.token for node in nodes]), np.array([node.edge for node in nodes])
    return replace(original.grow(parents, tokens, edges), resting=resting)
