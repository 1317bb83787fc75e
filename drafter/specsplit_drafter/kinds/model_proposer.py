"""The drafter with a model: its sessions, and one expansion of them from the inputs of every step of the model to children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.model.graphs import Capturer
from specsplit.model.tensors.transfer import wait_for
from specsplit.records import GraphStatistics
from specsplit.tree import Ints
from specsplit.values import DrafterInfo
from specsplit_drafter.descent.descent import Descent, DescentInputs, DescentPart, DeviceLevel, unpadded
from specsplit_drafter.descent.device_ranking import Ranked
from specsplit_drafter.descent.expansion_result import ExpansionResult
from specsplit_drafter.descent.graphs import DescentGraphs, padded_length
from specsplit_drafter.descent.ranking import Ranking
from specsplit_drafter.descent.rehearsal import rehearsals
from specsplit_drafter.drafts.calibration import DISTANCES
from specsplit_drafter.drafts.draft_model import DraftModel, ExpansionInput
from specsplit_drafter.drafts.draft_weights import DraftWeights
from specsplit_drafter.drafts.grammars import DraftGrammars
from specsplit_drafter.drafts.group_forwards import GroupForwards
from specsplit_drafter.drafts.proposer import (
    LEAST_LEVEL_WIDTH,
    UNBOUNDED,
    ExpansionOutcome,
    FrontierPart,
    ProposerPages,
    SessionKey,
)
from specsplit_drafter.drafts.token_map import free_kv_slots
from specsplit_drafter.kinds.isolation import FaultIsolation, Outcomes
from specsplit_drafter.kinds.model_session import ModelSession
from specsplit_drafter.kinds.numbered_frontier import NumberedFrontier, NumberedPart
from specsplit_drafter.kinds.session_proposer import CONTEXT_BUDGET, SessionProposer

MOST_LEVELS: Final = 8
"""Levels that one expansion draws at most."""


class ModelProposer(SessionProposer[ModelSession]):
    """Proposer of every kind that has a model."""

    def __init__(
        self,
        model: DraftModel,
        children: int,
        context_budget: int = CONTEXT_BUDGET,
        group: GroupForwards | None = None,
        grammars: DraftGrammars | None = None,
    ) -> None:
        self.group: Final = group
        """The forwards that it runs together with the other ranks of its group; None: it is alone."""
        self._descents: DescentGraphs | None = None
        """None: every descent is run eagerly."""
        super().__init__(
            Ranking(children, model.vocab_size, model.device),
            lambda tree, tokens: ModelSession(model, tree, tokens),
            grammars,
        )
        self._model = model
        self._budget = context_budget
        self._isolation = FaultIsolation()
        self._descends = group is None and model.recurrent and model.set_up_levels()

    @property
    def info(self) -> DrafterInfo:
        """The info of a drafter with this model."""
        return self._model.info

    @property
    def pages(self) -> ProposerPages:
        """Slots in use, of all steps together."""
        total = sum(pool.total_pages for pool in self._model.pools)
        return ProposerPages(total - sum(pool.free_pages for pool in self._model.pools), total)

    @property
    def weights(self) -> DraftWeights:
        """The weights that the model drafts with."""
        return self._model.weights

    @property
    def graphs(self) -> GraphStatistics:
        """How many forwards of all steps, and descents, were replayed or run eagerly, and why."""
        forwards = self._model.graph_statistics
        return forwards if self._descents is None else forwards.merged_with(self._descents.statistics)

    def capture_descents(self, capturer: Capturer) -> None:
        """Capture descents as graphs from now on."""
        self._descents = DescentGraphs(self._model, capturer)

    def expect_descents(self, levels: int, width: int) -> None:
        """Have `prepare` capture descents as they come when a session begins: of up to so many levels, of up to `width` nodes."""
        if self._descents is not None and self.max_levels > 1:
            width = min(LEAST_LEVEL_WIDTH, width, self._ranking.children)
            self._descents.expect(rehearsals(self._model, self._ranking, self.distances, levels, width))

    def prepare(self) -> bool:
        """Capture a descent that is expected, or a forward, that is not captured yet. False: there is none."""
        return (self._descents is not None and self._descents.prepare()) or self._model.capture_next()

    @property
    def free_kv_slots(self) -> int:
        """Nodes that have a free slot in every step."""
        return min(free_kv_slots(pool, len(self._sessions)) for pool in self._model.pools)

    @property
    def max_depth(self) -> int:
        """Depth below the root from which on no node can be expanded: without bound for a recurrent model, else the number of steps."""
        return UNBOUNDED if self._model.recurrent else len(self._model.pools)

    @property
    def max_levels(self) -> int:
        """Levels of one expansion: 1 for a model of several steps, for a rank of a group, and where attention is planned by the host."""
        return MOST_LEVELS if self._descends else 1

    @property
    def redraws(self) -> bool:
        """True for a model that reads features: a node is expanded without the feature of its parent."""
        return self._model.feature_dtype is not None

    @property
    def distances(self) -> int:
        """One for a model that reads no features."""
        return DISTANCES if self.redraws else 1

    @property
    def shares_root(self) -> bool:
        """True for a head: a node is expanded from the state of its parent, whatever becomes of the root meanwhile."""
        return self.redraws

    @property
    def drafts_blocks(self) -> bool:
        """False: one forward expands nodes, and nothing below them."""
        return False

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[ExpansionOutcome]:
        """Run one forward of each step over all nodes, and over as much pending context as the budget and the features allow.

        Sessions whose ranking `needs_host`, or that are held to a constraint, get one level.
        """
        self._grammars.settle()
        asked = NumberedFrontier(frontier, self._sessions)
        inputs = self._inputs(asked.parts)
        below = self._below(asked.parts, inputs, min(levels, self.max_levels))
        return self._isolation.expand(frontier, inputs, lambda parts: self._run(parts, asked, below))

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        """Assign nodes the slots that their rows were written to, and free the others."""
        self._sessions[session].first_step.assign_levels(slots)

    def _inputs(self, asked: Sequence[NumberedPart]) -> dict[SessionKey, list[ExpansionInput]]:
        """Make every session's part of each step.

        Pending contexts share the budget, the shortest first: a bonus must not wait for a prompt.
        """
        inputs: dict[SessionKey, list[ExpansionInput]] = {}
        ready = [each for each in asked if not each.session.pending]
        budget = self._budget
        for part, session, _, number in sorted(asked, key=lambda each: each.session.pending)[len(ready) :]:
            count = min(session.readable, budget)
            budget -= count
            if count:
                inputs[part.session] = session.context_inputs(part.slots, count, number)
                if self.redraws:
                    self._read[part.session] = session.read
        for part, session, _, number in ready:
            inputs[part.session] = session.node_inputs(part.slots, number)
        return inputs

    def _below(
        self, asked: Sequence[NumberedPart], inputs: Mapping[SessionKey, Sequence[ExpansionInput]], levels: int
    ) -> dict[SessionKey, DescentPart]:
        """Make the descent parts of the sessions whose frontier is expanded now, as deep as there is room for all."""
        if levels == 1:
            return {}
        scored = [
            (each, scoring)
            for each in asked
            if (scoring := each.part.scoring) is not None and each.part.session in inputs
            if inputs[each.part.session][0].wanted and not self._needs_host(each.part.session)
        ]
        most = max((len(each.positions) for each, _ in scored), default=0) * self._ranking.children
        width = min(most, max((scoring.width for _, scoring in scored), default=0))
        depth = min(levels - 1, self.free_kv_slots // max(1, len(scored) * width))
        return {
            part.session: DescentPart.of(part, scoring, session.first_step, positions, depth, width)
            for (part, session, positions, _), scoring in scored
            if depth
        }

    def _run(
        self,
        parts: Sequence[Sequence[ExpansionInput]],
        asked: NumberedFrontier,
        below: Mapping[SessionKey, DescentPart],
    ) -> Outcomes:
        if not parts:
            return {}
        work = [ExpansionInput.joined(of_step) for of_step in zip(*parts, strict=True)]
        wanted = [number for part in work for number in part.wanted]
        sessions, positions, paths = self._ranking_inputs(asked, wanted)
        masking = self._grammars.begin(sessions, paths)
        logits = self._forwards(work)
        if not wanted:
            wait_for(self._model.device)  # else it would seem to take no time, and the next one all of it
            return {}
        whole = logits[0] if len(logits) == 1 else torch.cat(logits)  # they are large: no copy where none is needed
        masks = None if masking is None else masking.result()
        ranked, rows = self._ranking.rank(whole, sessions, positions, paths, masks), asked.rows(wanted)
        going = {session: below[session] for session in rows if session in below}
        drawn = self._draw([*going.values()], [rows[session] for session in going], ranked)
        result, numbers = ExpansionResult(ranked, drawn), {session: number for number, session in enumerate(going)}
        return {
            (key := each.part.session): result.children(rows[key], each.positions, numbers.get(key))
            for each in asked.parts
            if each.part.session in rows
        }

    def _draw(self, parts: Sequence[DescentPart], rows: Sequence[Ints], frontier: Ranked) -> list[DeviceLevel]:
        """Draw the levels below the nodes of each part, which have these rows among all that were ranked."""
        if not parts:
            return []
        padding = unpadded if self._descents is None else padded_length
        inputs = DescentInputs.of(parts, rows, self._model.pools[0].tables, self._model.device, padding)
        sessions, spans = [part.session for part in parts], [part.span for part in parts]
        ranking = self._ranking.on_device(sessions, inputs.level_slots.shape[2], spans)
        children = frontier.at(inputs.rows.view(-1))
        descent = Descent(inputs, ranking, children, int(self.redraws))
        return descent.draw(self._model) if self._descents is None else self._descents.draw(descent)

    def _forwards(self, work: Sequence[ExpansionInput]) -> list[Tensor]:
        """Compute the logits of every step that has rows."""
        if self.group is not None:
            return self.group.run(work, len(self._sessions))
        return [self._model.run(step, part) for step, part in enumerate(work) if part.rows]

    def _needs_host(self, session: SessionKey) -> bool:
        """Tell whether what is drawn below a node of a session has to be ranked on the host."""
        return self._ranking.needs_host(session) or self._grammars.holds(session)

    def _ranking_inputs(
        self, asked: NumberedFrontier, wanted: Sequence[int]
    ) -> tuple[list[SessionKey], list[int], list[Sequence[int]]]:
        """Look up session, position and, where penalties need it, path of each node by its number."""
        owners, slots, positions = asked.at(wanted)
        sessions = [owner.part.session for owner in owners]
        paths: list[Sequence[int]] = [
            owner.session.path(slot) if self._by_path(owner.part.session) else ()
            for owner, slot in zip(owners, slots, strict=True)
        ]
        return sessions, positions, paths
