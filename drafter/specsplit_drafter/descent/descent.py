"""A descent: levels that the device draws below some frontiers, one after the other, while the host waits for the last.

    choose the W best children, by score, of the nodes of each session  →  forward  →  rank their children  →  and again

The slots of all levels are allocated beforehand, so which slots a node may see depends on its level alone, and which of them it sees is a
mask that grows with the levels. Shapes depend on no value, and no value is asked for, so that a descent can be captured as a graph.

    B   sessions      N   nodes of a level, W of every level but the first      c   children of a node
    C   slots of the longest context      E   slots of the tree: those of the frontier's paths, then W for each level
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from specsplit.model.pages.batch import Mask
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.tables import PageTables, RowPages, Slots
from specsplit.model.tensors.transfer import on_device
from specsplit.tree import Ints
from specsplit_drafter.descent.choosing import best_children, shifts_of
from specsplit_drafter.descent.device_edges import edges_of
from specsplit_drafter.descent.device_ranking import DeviceRanking, Ranked
from specsplit_drafter.drafts.draft_model import DraftModel
from specsplit_drafter.drafts.proposer import FrontierPart, Scoring, SessionKey
from specsplit_drafter.drafts.token_map import TokenMap

Padding: TypeAlias = Callable[[int], int]
"""Given a length, the one that it is padded to."""


def unpadded(length: int) -> int:
    """Return the length itself: nothing is padded."""
    return length


@dataclass(frozen=True, slots=True, eq=False)
class DescentPart:
    """One session's frontier of n nodes, below which is descended. On the host."""

    session: SessionKey
    scoring: Scoring
    positions: Ints
    """[n]"""
    slots: Slots
    """[n] slots of the KV and the states of the nodes."""
    context: RowPages
    own: Slots
    """[E] slots of the nodes on the frontier's paths."""
    mask: Mask
    """[n, E] which of them each node sees."""
    level_slots: Slots
    """[levels - 1, W] for the nodes of the levels below."""

    @classmethod
    def of(
        cls, part: FrontierPart, scoring: Scoring, token_map: TokenMap, positions: Ints, depth: int, width: int
    ) -> DescentPart:
        """Allocate slots for `depth` levels of `width` nodes below a frontier whose nodes are at `positions`. Raises OutOfPages."""
        own, mask = token_map.visible_nodes(part.slots)
        return cls(
            session=part.session,
            scoring=scoring,
            positions=positions,
            slots=token_map.slots_of(part.slots),
            context=token_map.context,
            own=own,
            mask=mask,
            level_slots=token_map.allocate_levels(depth, width),
        )

    @property
    def span(self) -> range:
        """Positions that nodes may have, the frontier's own included."""
        return range(int(self.positions.min()), int(self.positions.max()) + len(self.level_slots) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class DescentInputs:
    """The input of a descent, on the device."""

    rows: Tensor
    """int64 [B, N] rows of the nodes in the ranking of the frontiers."""
    scores: Tensor
    """float64 [B, N] log-survivals; -inf where there is no node."""
    distances: Tensor
    """int64 [B, N]"""
    positions: Tensor
    """int64 [B, N]"""
    slots: Tensor
    """int64 [B, N]"""
    sees: Tensor
    """bool [B, N, E]"""
    context: Tensor
    """int64 [B, C] slots of the contexts, int32 on a GPU; a shorter one is padded with its first slot."""
    lengths: Tensor
    """int64 [B] of the contexts."""
    own: Tensor
    """int64 [B, E]"""
    level_slots: Tensor
    """int64 [B, levels - 1, W]"""
    shifts: Tensor
    """float64 [B, D, R, bins]"""
    floors: Tensor
    """float64 [B, 1, 1]"""
    deepest: Tensor
    """int64 [B, 1]"""

    @classmethod
    def of(
        cls,
        parts: Sequence[DescentPart],
        rows: Sequence[Ints],
        tables: PageTables,
        device: torch.device,
        padding: Padding = unpadded,
    ) -> DescentInputs:
        """Lay out the parts (at least one) of all sessions, and of each the rows [n] of its nodes. `padding` pads N, C and E."""
        scorings = [part.scoring for part in parts]
        context, lengths = _contexts([part.context for part in parts], tables, device, padding)
        nowhere = [int(tables.slots[part.context.table, 0]) for part in parts]  # slots of another session may hold NaN
        of_host = {
            "rows": _padded(rows, padding),
            "scores": _padded([scoring.scores for scoring in scorings], padding, [-np.inf] * len(parts)),
            "distances": _padded([scoring.distances for scoring in scorings], padding),
            "positions": _padded([part.positions for part in parts], padding),
            "slots": _padded([part.slots for part in parts], padding),
            "sees": _masks([part.mask for part in parts], padding),
            "own": _padded([part.own for part in parts], padding, nowhere),
            "level_slots": np.stack([part.level_slots for part in parts]),
            "shifts": np.stack([scoring.shifts for scoring in scorings]),
            "floors": np.array([scoring.floor for scoring in scorings])[:, None, None],
            "deepest": np.array([scoring.deepest for scoring in scorings])[:, None],
        }
        tensors = {name: on_device(array, device) for name, array in of_host.items()}
        return cls(context=context, lengths=lengths, **tensors)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLevel:
    """One level of all sessions, on the device. The nodes of a session stand best first, padding last."""

    parents: Tensor
    """int64 [B, W] rows of the level above."""
    tokens: Tensor
    """int64 [B, W]"""
    scores: Tensor
    """float64 [B, W] log-survivals; -inf where there is no node."""
    children: Ranked
    """Children of the nodes of all sessions, end to end."""


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """The nodes of one level."""

    scores: Tensor
    distances: Tensor
    positions: Tensor
    slots: Tensor
    sees: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """Draws levels below the frontiers of some sessions."""

    inputs: DescentInputs
    ranking: DeviceRanking
    children: Ranked
    """Children of the nodes of all frontiers, N for each session, end to end."""
    first: int
    """Position of the token that row 0 of a context is of."""

    @torch.inference_mode()
    def draw(self, model: DraftModel) -> list[DeviceLevel]:
        """Draw all levels. Waits for nothing on the device."""
        return list(self._levels(model))

    def _levels(self, model: DraftModel) -> Iterator[DeviceLevel]:
        inputs, children = self.inputs, self.children
        nodes = _Nodes(inputs.scores, inputs.distances, inputs.positions, inputs.slots, inputs.sees)
        tail = inputs.own
        for level_slots in inputs.level_slots.unbind(1):
            parents, tokens, below = self._best(nodes, children, level_slots)
            sources = nodes.slots.gather(1, parents)
            tail = torch.cat((tail, level_slots), 1)
            batch = DeviceBatch(
                tokens.view(-1),
                below.positions.view(-1) - self.first,
                level_slots.reshape(-1),
                inputs.context,
                inputs.lengths,
                tail,
                below.sees,
            )
            logits = model.run_level(batch, sources.view(-1))
            children, nodes = self.ranking.rank(logits, below.positions.view(-1)), below
            yield DeviceLevel(parents, tokens, below.scores, children)

    def _best(self, nodes: _Nodes, children: Ranked, level_slots: Tensor) -> tuple[Tensor, Tensor, _Nodes]:
        """Choose the best children of each session's nodes -> the rows of their parents, their tokens, and the nodes that they are."""
        inputs, (size, count), width = self.inputs, nodes.scores.shape, level_slots.shape[1]
        tokens, raw = (part.view(size, count, -1) for part in (children.tokens, children.raw))
        scores = nodes.scores.unsqueeze(2) + edges_of(raw, shifts_of(inputs.shifts, nodes.distances))
        impossible = (scores < inputs.floors) | (nodes.positions + 1 >= inputs.deepest).unsqueeze(2)
        parents, chosen, best = best_children(scores.masked_fill(impossible, -torch.inf), tokens, width)
        above = parents.unsqueeze(2).expand(-1, -1, nodes.sees.shape[2])
        itself = torch.eye(width, dtype=torch.bool, device=level_slots.device).expand(size, -1, -1)
        below = _Nodes(
            best,
            nodes.distances.gather(1, parents) + 1,
            nodes.positions.gather(1, parents) + 1,
            level_slots,
            torch.cat((nodes.sees.gather(1, above), itself), 2),
        )
        return parents, chosen, below


def _contexts(
    contexts: Sequence[RowPages], tables: PageTables, device: torch.device, padding: Padding
) -> tuple[Tensor, Tensor]:
    """Look up the slots [B, C] of contexts, and how many each has, int64 [B]. A CPU reads the host's tables."""
    most = max(context.length for context in contexts)
    numbers = np.array([context.table for context in contexts])
    slots = (
        torch.from_numpy(tables.slots[numbers, :most])
        if device.type == "cpu"
        else tables.on(device)[on_device(numbers, device), :most]
    )
    slots = pad(slots, (0, padding(most) - most))
    lengths = on_device(np.array([context.length for context in contexts]), device)
    real = torch.arange(slots.shape[1], device=device) < lengths.unsqueeze(1)
    return slots.where(real, slots[:, :1]), lengths


def _padded(parts: Sequence[NDArray[Any]], padding: Padding, fill: Sequence[float] | None = None) -> NDArray[Any]:
    """Stack arrays [n] of several lengths. Short ones are padded with the `fill` of each, or with their first number."""
    most = padding(max(map(len, parts)))
    if len(parts) == 1 and len(parts[0]) == most:
        return parts[0][None]
    padded = np.empty((len(parts), most), dtype=parts[0].dtype)
    for number, (row, part) in enumerate(zip(padded, parts, strict=True)):
        row[: len(part)] = part
        row[len(part) :] = part[0] if fill is None else fill[number]
    return padded


def _masks(parts: Sequence[Mask], padding: Padding) -> Mask:
    """Stack masks [n, E] of several shapes. Padding sees nothing, and no node sees it."""
    nodes, seen = (padding(int(most)) for most in np.max([part.shape for part in parts], axis=0))
    padded = np.zeros((len(parts), nodes, seen), dtype=np.bool_)
    for number, part in enumerate(parts):
        padded[number, : part.shape[0], : part.shape[1]] = part
    return padded
