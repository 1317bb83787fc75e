"""The levels of a tree that blocks give: the best children of the nodes of a level, and what their blocks say of what is below these.

choose the W best children, by score, of the nodes of each session  ->  the next position of their blocks  ->  and again

B   sessions      N   nodes of a level, W of every level but the first      c   children of a node
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.tensors.transfer import on_device
from specsplit.tree import Ints
from specsplit_drafter.descent.choosing import best_children, shifts_of
from specsplit_drafter.descent.descent import DeviceLevel
from specsplit_drafter.descent.device_edges import edges_of
from specsplit_drafter.descent.device_ranking import Ranked
from specsplit_drafter.drafts.calibration import DISTANCES
from specsplit_drafter.drafts.proposer import Scoring


class RankedBlocks(Protocol):
    """What the blocks of some nodes say of the levels below these."""

    @property
    def levels(self) -> int:
        """Levels that a block gives at most."""
        ...

    @property
    def depths(self) -> Tensor:
        """int64 [n] levels that the block of each node gives."""
        ...

    def below(self, level: int, blocks: Tensor, tokens: Tensor, parents: Tensor, positions: Tensor) -> Ranked:
        """Rank the children of nodes of a level, B * W of them, by the numbers of their blocks, their tokens, the rows of their parents
        in the level above (end to end over the sessions) and their positions."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class BlockDescentPart:
    """One session's nodes that blocks were drafted below. On the host."""

    scoring: Scoring
    positions: Ints
    """[n]"""
    rows: Ints
    """[n] numbers of the nodes, and of their blocks, among those of all sessions."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockDescent:
    """Draws the levels below the nodes of some sessions. On the device."""

    rows: Tensor
    """int64 [B, N]"""
    scores: Tensor
    """float64 [B, N] log-survivals; -inf where there is no node."""
    distances: Tensor
    """int64 [B, N]"""
    positions: Tensor
    """int64 [B, N]"""
    shifts: Tensor
    """float64 [B, D, R, bins]"""
    floors: Tensor
    """float64 [B, 1, 1]"""
    deepest: Tensor
    """int64 [B, 1, 1]"""
    width: int

    @classmethod
    def of(cls, parts: Sequence[BlockDescentPart], device: torch.device) -> BlockDescent:
        """Lay out the parts (at least one) of all sessions."""
        scorings = [part.scoring for part in parts]
        of_host = {
            "rows": _padded([part.rows for part in parts]),
            "scores": _padded([scoring.scores for scoring in scorings], -np.inf),
            "distances": _padded([scoring.distances for scoring in scorings]),
            "positions": _padded([part.positions for part in parts]),
            "shifts": np.stack([scoring.shifts for scoring in scorings]),
            "floors": np.array([scoring.floor for scoring in scorings])[:, None, None],
            "deepest": np.array([scoring.deepest for scoring in scorings])[:, None, None],
        }
        tensors = {name: on_device(array, device) for name, array in of_host.items()}
        return cls(width=max(scoring.width for scoring in scorings), **tensors)

    @torch.inference_mode()
    def draw(self, frontier: Ranked, blocks: RankedBlocks) -> list[DeviceLevel]:
        """Draw all levels below nodes whose children are ranked in `frontier`, by the numbers of the nodes."""
        return list(self._levels(frontier, blocks))

    def _levels(self, frontier: Ranked, blocks: RankedBlocks) -> Iterator[DeviceLevel]:
        size = len(self.scores)
        numbers, scores, distances, positions = self.rows, self.scores, self.distances, self.positions
        children = frontier.at(numbers.reshape(-1))
        for level in range(1, blocks.levels):
            tokens, raw = (part.view(size, scores.shape[1], -1) for part in (children.tokens, children.raw))
            below = scores.unsqueeze(2) + edges_of(raw, shifts_of(self.shifts, distances))
            ends = (blocks.depths[numbers] <= level) | (positions + 1 >= self.deepest.squeeze(2))
            below = below.masked_fill((below < self.floors) | ends.unsqueeze(2), -torch.inf)
            parents, chosen, scores = best_children(below, tokens, self.width)
            above = torch.arange(size, device=parents.device).unsqueeze(1) * numbers.shape[1] + parents
            numbers, positions = numbers.gather(1, parents), positions.gather(1, parents) + 1
            distances = torch.full_like(numbers, DISTANCES - 1 + level)
            children = blocks.below(
                level, numbers.reshape(-1), chosen.reshape(-1), above.reshape(-1), positions.reshape(-1)
            )
            yield DeviceLevel(parents, chosen, scores, children)


def _padded(parts: Sequence[NDArray[Any]], fill: float | None = None) -> NDArray[Any]:
    """Stack arrays [n] of several lengths. Short ones are padded with `fill`, or with their first number."""
    most = max(map(len, parts))
    padded = np.empty((len(parts), most), dtype=parts[0].dtype)
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
        row[len(part) :] = part[0] if fill is None else fill
    return padded
