"""A node as those see it who look at a tree: an object of its own, made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specsplit.tree.token_tree import TokenTree


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
        slot, tree = self.tree.slot(self.id), self.tree
        return {node.token: node for node in (tree.look(below, self) for below in tree.family().get(slot, ()))}

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
        family = self.tree.family()
        level = {self.tree.slot(self.id): self}
        while level := {
            slot: self.tree.look(slot, node) for above, node in level.items() for slot in family.get(above, ())
        }:
            yield from level.values()
