"""The drafter of blocks: one expansion drafts, below each of its nodes, as many levels as a block has positions.

    features of committed tokens  ->  their keys and values      a node  ->  its block  ->  its children, and level by level what is below

A node that is not the root has a block too: the tokens from the root to it stand at its front in the place of masks. So what is below a
guessed root is drafted while the target steps, and every node may be drawn anew, given its own path, where the block of a node above it
knew but how likely that path is.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specsplit.model.heads import BlockRows
from specsplit.model.tensors.transfer import wait_for
from specsplit.records import GraphStatistics
from specsplit.tree import Ints
from specsplit.values import DrafterInfo
from specsplit_drafter.descent.block_descent import BlockDescent, BlockDescentPart
from specsplit_drafter.descent.device_ranking import DeviceRanking, Ranked
from specsplit_drafter.descent.expansion_result import ExpansionResult
from specsplit_drafter.descent.ranking import Ranking
from specsplit_drafter.drafts.calibration import DISTANCES
from specsplit_drafter.drafts.draft_weights import DraftWeights
from specsplit_drafter.drafts.grammars import DraftGrammars, Masks
from specsplit_drafter.drafts.proposer import (
    UNBOUNDED,
    ExpansionOutcome,
    FrontierPart,
    ProposerPages,
    SessionKey,
)
from specsplit_drafter.drafts.token_map import free_kv_slots
from specsplit_drafter.kinds.block_model import BlockModel, DraftedBlocks, confident
from specsplit_drafter.kinds.block_session import BlockSession, NewContext
from specsplit_drafter.kinds.isolation import FaultIsolation, Outcomes
from specsplit_drafter.kinds.session_proposer import CONTEXT_BUDGET, SessionProposer


class _Part(NamedTuple):
    """One session's part of an expansion."""

    asked: FrontierPart
    session: BlockSession
    context: NewContext | None
    ready: bool
    """Its context is read to the end then, so that its nodes can be expanded."""


class BlockProposer(SessionProposer[BlockSession]):
    """Proposer of kinds dflash and dspark."""

    def __init__(
        self,
        model: BlockModel,
        children: int,
        context_budget: int = CONTEXT_BUDGET,
        grammars: DraftGrammars | None = None,
    ) -> None:
        """children: candidates of a node at most. context_budget: pending tokens of an expansion."""
        vocabulary = model.head.shape.vocabulary
        super().__init__(
            Ranking(children, vocabulary.size, model.device),
            lambda tree, tokens: BlockSession(model, tree, tokens),
            grammars,
        )
        self._model: Final = model
        self._budget: Final = context_budget
        self._isolation: Final = FaultIsolation()

    @property
    def info(self) -> DrafterInfo:
        """The info that verifiers get."""
        return self._model.info

    @property
    def group(self) -> None:
        """None: it is alone."""
        return

    @property
    def weights(self) -> DraftWeights:
        """The weights that the model drafts with."""
        return self._model.weights

    @property
    def graphs(self) -> GraphStatistics:
        """Nothing: every forward is run eagerly."""
        return GraphStatistics()

    @property
    def max_depth(self) -> int:
        """A number without bound: a node of any depth has a block."""
        return UNBOUNDED

    @property
    def max_levels(self) -> int:
        """One: what is below comes with it."""
        return 1

    @property
    def redraws(self) -> bool:
        """True: a node is drafted without the features of the tokens above it."""
        return True

    @property
    def shares_root(self) -> bool:
        """True: all see the same features."""
        return True

    @property
    def drafts_blocks(self) -> bool:
        """True: an expansion draws as many levels as a block has positions."""
        return True

    @property
    def distances(self) -> int:
        """One for every number of drafted tokens that a block shows, and behind these one for every further position of it."""
        return DISTANCES + self._model.size - 1

    @property
    def pages(self) -> ProposerPages:
        """Slots in use, those of blocks not counted."""
        pool, own = self._model.pool, len(self._model.scratch)
        return ProposerPages(pool.total_pages - own - pool.free_pages, pool.total_pages - own)

    @property
    def free_kv_slots(self) -> int:
        """A number without bound: nodes hold no slots."""
        return UNBOUNDED if free_kv_slots(self._model.pool, len(self._sessions)) else 0

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[ExpansionOutcome]:
        """Read as much pending context as the budget and the features allow, and run the blocks of nodes whose context is read."""
        self._grammars.settle()
        parts: dict[SessionKey, _Part] = {}
        budget = self._budget
        for asked in sorted(frontier, key=lambda each: self._sessions[each.session].pending):
            session = self._sessions[asked.session]
            count = min(session.readable, budget)
            budget -= count
            context = session.next_context(count) if count else None
            if context is not None:
                self._read[asked.session] = session.read
            parts[asked.session] = _Part(asked, session, context, not session.pending)
        work = {key: part for key, part in parts.items() if part.ready or part.context is not None}
        return self._isolation.expand(frontier, work, self._run)

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        """Do nothing: nodes hold no slots."""

    def _run(self, parts: Sequence[_Part]) -> Outcomes:
        new = [part.context for part in parts if part.context is not None]
        if new:
            self._model.extend(
                [each for context in new for each in context.features],
                np.concatenate([context.positions for context in new]),
                np.concatenate([context.slots for context in new]),
            )
        ready = [part for part in parts if part.ready]
        if not ready:
            if new:
                wait_for(self._model.device)  # else it would seem to take no time, and the next one all of it
            return {}
        masking = self._masking(ready)
        drafted = self._drafted(ready)
        masks = None if masking is None else masking.result()
        positions = [part.session.positions(part.asked.slots) for part in ready]
        starts = np.cumsum([0, *map(len, positions)])
        rows = [np.arange(start, start + len(each)) for start, each in zip(starts.tolist(), positions, strict=False)]
        blocks = _Ranked(self._ranking, drafted, ready, positions, masks)
        numbers = [number for number, part in enumerate(ready) if self._descends(part, blocks)]
        levels = []
        if numbers and drafted.levels > 1:
            descent = BlockDescent.of(
                [_below(ready[number].asked, positions[number], rows[number]) for number in numbers], self._model.device
            )
            blocks.prepare(
                [ready[number].asked.session for number in numbers],
                descent.width,
                [positions[number] for number in numbers],
            )
            levels = descent.draw(blocks.first, blocks)
        result, places = ExpansionResult(blocks.first, levels), {number: place for place, number in enumerate(numbers)}
        return {
            part.asked.session: result.children(rows[number], positions[number], places.get(number))
            for number, part in enumerate(ready)
        }

    def _masking(self, parts: Sequence[_Part]) -> Future[Masks] | None:
        """Begin to work out what may be drafted behind the nodes themselves; what is below these knows no single path."""
        held = [part for part in parts if self._grammars.holds(part.asked.session)]
        if not held:
            return None
        sessions = [part.asked.session for part in parts for _ in part.asked.slots]
        paths: list[Sequence[int]] = [
            part.session.path(node) if part in held else () for part in parts for node in part.asked.slots.tolist()
        ]
        return self._grammars.begin(sessions, paths)

    def _drafted(self, parts: Sequence[_Part]) -> DraftedBlocks:
        """Run the blocks of all nodes, in as many forwards as their slots call for."""
        most, size = self._model.blocks_at_once, self._model.size
        pieces: list[list[BlockRows]] = [[]]
        free = most
        for part in parts:
            left = part.asked.slots
            while len(left):
                if not free:
                    pieces.append([])
                    free = most
                nodes, left = left[:free], left[free:]
                start = (most - free) * size
                pieces[-1].append(part.session.blocks(nodes, self._model.scratch[start : start + len(nodes) * size]))
                free -= len(nodes)
        hidden = torch.cat([self._model.draft(blocks) for blocks in pieces])
        tokens = np.concatenate([each.tokens for blocks in pieces for each in blocks])
        shown = np.concatenate([part.session.shown(part.asked.slots) for part in parts])
        return DraftedBlocks.of(self._model.head, hidden, tokens, shown)

    def _descends(self, part: _Part, blocks: _Ranked) -> bool:
        """Tell whether levels are drawn below the nodes of a session: not where choices within a block call for numbers on the host."""
        return part.asked.scoring is not None and not (
            blocks.conditions and self._ranking.needs_host(part.asked.session)
        )


def _below(asked: FrontierPart, positions: Ints, rows: Ints) -> BlockDescentPart:
    assert asked.scoring is not None
    return BlockDescentPart(asked.scoring, positions, rows)


class _Ranked:
    """What blocks say of the levels below their nodes, ranked under the sampling of their sessions (a RankedBlocks)."""

    def __init__(
        self,
        ranking: Ranking,
        drafted: DraftedBlocks,
        parts: Sequence[_Part],
        positions: Sequence[Ints],
        masks: Masks | None = None,
    ) -> None:
        """positions: of the nodes of each part. masks: what may be drafted behind some of the nodes."""
        self._ranking: Final = ranking
        self._drafted: Final = drafted
        self._on_device: DeviceRanking | None = None
        self.conditions: Final = drafted.conditions
        levels = 1 if self.conditions else drafted.levels
        blocks = torch.arange(len(drafted.tokens), device=drafted.tokens.device)
        found = [drafted.logits(level, blocks, drafted.tokens, None) for level in range(levels)]
        logits = torch.stack([logits for logits, _ in found], dim=1).flatten(0, 1)
        sessions = [part.asked.session for part in parts for _ in range(len(part.asked.slots) * levels)]
        places = (np.concatenate(positions)[:, None] + np.arange(levels)).reshape(-1)
        paths: list[Sequence[int]] = []
        for part in parts:
            penalised = ranking.penalises(part.asked.session)
            for node in part.asked.slots.tolist():
                paths += [part.session.path(node) if penalised else ()] * levels
        first = None if masks is None else Masks(masks.rows * levels, masks.words)
        ranked = ranking.rank(logits, sessions, places.tolist(), paths, first)
        self._all: Final = confident(ranked, _stacked([confidence for _, confidence in found]))
        self.first: Final = self._all if levels == 1 else self._all.at(blocks * levels)
        self.depths: Final = drafted.depths

    @property
    def levels(self) -> int:
        """Levels that a block gives at most."""
        return self._drafted.levels

    def prepare(self, sessions: Sequence[SessionKey], width: int, positions: Sequence[Ints]) -> None:
        """Prepare the ranking of `width` nodes of each of these sessions on every level, whose nodes above are at these positions."""
        if self.conditions:
            spans = [range(int(each.min()), int(each.max()) + self.levels + 1) for each in positions]
            self._on_device = self._ranking.on_device(sessions, width, spans)

    def below(self, level: int, blocks: Tensor, tokens: Tensor, parents: Tensor, positions: Tensor) -> Ranked:
        """See RankedBlocks."""
        if self._on_device is None:
            return self._all.at(blocks * self.levels + level)
        logits, confidence = self._drafted.logits(level, blocks, tokens, parents if level > 1 else blocks)
        return confident(self._on_device.rank(logits, positions), confidence)


def _stacked(each: Sequence[Tensor | None]) -> Tensor | None:
    """Put what is said of every level [n] in order of the blocks [n * levels]; None: nothing is said."""
    said = [one for one in each if one is not None]
    return torch.stack(said, dim=1).flatten() if said else None
