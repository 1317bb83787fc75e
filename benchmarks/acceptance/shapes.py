"""Which nodes a tree has, chosen before any token is known (arXiv 2402.12374, Sequoia: the best tree for acceptance by rank)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Budget:
    """How large a tree may be; root not counted."""

    topk: int
    depth: int
    nodes: int

    def __str__(self) -> str:
        return f"{self.topk}x{self.depth}, {self.nodes} nodes"


@dataclass(frozen=True)
class Slot:
    """One node of a shape: the `rank`-th child (from 0) of slot `parent` (-1: the root)."""

    parent: int
    rank: int
    depth: int


def best_shape(by_rank: Sequence[float], budget: Budget) -> list[Slot]:
    """The `budget.nodes` slots likeliest to be accepted, parents before children.

    `by_rank` is the probability that the child of each rank is the accepted one; a tree is closed under "earlier sibling", so it
    is read as never rising.
    """
    chances = np.minimum.accumulate(np.asarray(by_rank, dtype=float)[: budget.topk])
    slots: list[Slot] = []
    heap = [(-chances[0], -1, 0, 1, 1.0)]  # (-chance, parent, rank, depth, chance of the parent)
    while heap and len(slots) < budget.nodes:
        chance, parent, rank, depth, above = heapq.heappop(heap)
        slots.append(Slot(parent, rank, depth))
        if rank + 1 < len(chances):
            heapq.heappush(heap, (-above * chances[rank + 1], parent, rank + 1, depth, above))
        if depth < budget.depth:
            heapq.heappush(heap, (chance * chances[0], len(slots) - 1, 0, depth + 1, -chance))
    return slots
