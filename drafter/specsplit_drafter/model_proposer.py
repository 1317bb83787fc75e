"""The drafter with a model: its sessions, their pending context, and what one expansion asks of each step of the model.

Draft extend: after a commit the committed tokens' pending rows are computed first, in a forward in which the session has no nodes but
those that survived and have come so near to the root that they are due in lower steps, and, of a head, new ones farther down whose parents
were expanded before. The root gets its children from it; nodes that survived keep theirs. A prompt is read in the same way, in parts so
that it does not keep other sessions waiting, and with a head as its features arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureLayout, Features
from specsplit.model.graphs import Capturer
from specsplit.model.transfer import wait_for
from specsplit.records import GraphStatistics
from specsplit.tree import Flags, Ints, TokenTree
from specsplit.values import DrafterInfo, Sampling
from specsplit_drafter.descent import Descent, DescentInputs, DescentPart, Drawn, exactly
from specsplit_drafter.descent_graphs import DescentGraphs, fitting
from specsplit_drafter.device_ranking import Ranked
from specsplit_drafter.draft_model import DraftModel, StepInput
from specsplit_drafter.feature_buffer import FeatureBuffer
from specsplit_drafter.fetched import Fetched
from specsplit_drafter.isolation import Found, Isolation
from specsplit_drafter.proposer import UNBOUNDED, Advance, Expanded, Frontier, ProposerPages, SessionKey
from specsplit_drafter.ranking import Ranking
from specsplit_drafter.token_map import TokenMap, room
from specsplit_drafter.turns import Turns

CONTEXT_BUDGET: Final = 512
"""Pending tokens in one expansion at most, all sessions together."""
MOST_LEVELS: Final = 8
"""Of one expansion."""


@dataclass(slots=True)
class _Session:
    tokens: list[int]
    """Committed, the root last."""
    tree: TokenTree
    maps: list[TokenMap]
    """By step."""
    features: FeatureBuffer | None

    @property
    def root(self) -> int:
        """Position of the root."""
        return len(self.tokens) - 1

    @property
    def pending(self) -> int:
        """Rows of the context that step 0 lacks."""
        return self.maps[0].pending

    @property
    def readable(self) -> int:
        """Pending rows of step 0 that can be computed now; row i of a head is of the token at i + 1, and reads feature i."""
        arrived = UNBOUNDED if self.features is None else self.features.arrived - self.maps[0].computed
        return min(self.pending, arrived)

    @property
    def stalled(self) -> bool:
        """True if the root cannot be expanded, or read towards, with the features that are there; a first token never can."""
        return self.features is not None and (self.root == 0 or (self.pending > 0 and self.readable == 0))


class ModelProposer:
    """Proposer of every kind that has a model."""

    def __init__(
        self, model: DraftModel, children: int, context_budget: int = CONTEXT_BUDGET, turns: Turns | None = None
    ) -> None:
        self.turns: Final = turns
        """How it expands together with the other ranks of its group; None: it is alone."""
        self._descents: DescentGraphs | None = None
        """None: every descent is run eagerly."""
        self._model = model
        self._budget = context_budget
        self._ranking = Ranking(children, model.vocab_size, model.device)
        self._isolation = Isolation()
        self._sessions: dict[SessionKey, _Session] = {}
        self._read: dict[SessionKey, int] = {}

    @property
    def info(self) -> DrafterInfo:
        """What the model says of itself."""
        return self._model.info

    @property
    def pages(self) -> ProposerPages:
        """Slots in use, of all steps together."""
        total = sum(pool.total_pages for pool in self._model.pools)
        return ProposerPages(total - sum(pool.free_pages for pool in self._model.pools), total)

    @property
    def graphs(self) -> GraphStatistics:
        """What has become of the forwards of all steps, and of descents."""
        forwards = self._model.graph_statistics
        return forwards if self._descents is None else forwards.beside(self._descents.statistics)

    def capture_descents(self, capturer: Capturer) -> None:
        """Capture descents as graphs from now on."""
        self._descents = DescentGraphs(self._model, capturer)

    @property
    def room(self) -> int:
        """Nodes that have a free slot in every step."""
        return min(room(pool, len(self._sessions)) for pool in self._model.pools)

    @property
    def max_depth(self) -> int:
        """A recurrent model goes on and on; another one has a step for every level."""
        return UNBOUNDED if self._model.recurrent else len(self._model.pools)

    @property
    def max_levels(self) -> int:
        """A recurrent model descends; steps of their own, and other ranks, would have to be told of every level."""
        return MOST_LEVELS if self._model.recurrent and self.turns is None else 1

    @property
    def redraws(self) -> bool:
        """True for a model that reads features: a node is expanded without the feature of its parent."""
        return self._model.feature_dtype is not None

    @property
    def shares_root(self) -> bool:
        """True for a head: a node is expanded from the state of its parent, whatever becomes of the root meanwhile."""
        return self.redraws

    def open(
        self, session: SessionKey, tree: TokenTree, tokens: Sequence[int], sampling: Sampling, prompt_tokens: int = 0
    ) -> None:
        """Take slots for the committed tokens, whose rows are computed later. Raises OutOfPages."""
        dtype = self._model.feature_dtype
        features = None if dtype is None else FeatureBuffer(dtype)
        self._sessions[session] = _Session(list(tokens), tree, self._maps(tree), features)
        self._ranking.open(session, tokens, sampling, prompt_tokens)
        try:
            for token_map in self._sessions[session].maps:
                token_map.reserve(len(tokens))
        except BaseException:
            self.close(session)
            raise

    def commit(self, session: SessionKey, advance: Advance) -> None:
        """Take over and free slots, and take new ones for the rest and for survivors that are due in a lower step. Raises OutOfPages."""
        state = self._sessions[session]
        state.tokens.extend(advance.tokens)
        self._ranking.commit(session, advance.tokens)
        for token_map in state.maps:  # all of them, before one may raise: nobody else knows whose slots are dead
            token_map.commit(advance)
        for token_map in state.maps:
            token_map.reserve(len(state.tokens))
        if not self._model.recurrent and advance.moved is not None:
            self._descend(state)

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """Take in what FeatureBuffer.add takes, if the model reads features."""
        state = self._sessions[session]
        if state.features is None:
            raise InvalidRequest("features", "were sent to a drafter that reads none")
        state.features.add(features, layout, state.root)

    def stalled(self, session: SessionKey) -> bool:
        """Tell whether the root waits for features, and all that have come are read."""
        return self._sessions[session].stalled

    def pending(self, session: SessionKey) -> int:
        """Count the committed tokens without a row in the first step; the first token, which has none with a head, is not counted then."""
        return self._sessions[session].pending

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """Tell which sessions had features read since the last call, and how far."""
        read, self._read = self._read, {}
        return tuple(read.items())

    def expand(self, frontier: Sequence[Frontier], levels: int = 1) -> list[Expanded]:
        """Run one forward of each step over all nodes, and over as much pending context as the budget and the features allow.

        One level for sessions whose ranking has to look at what the device has computed.
        """
        inputs = self._inputs(frontier)
        below = self._below(frontier, inputs, min(levels, self.max_levels))
        return self._isolation.expand(frontier, inputs, lambda parts: self._run(parts, frontier, below))

    def settle(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        """Leave nodes the slots that their rows were written to, and free those of what became none."""
        self._sessions[session].maps[0].settle(slots)

    def close(self, session: SessionKey) -> None:
        """Free every slot."""
        for token_map in self._sessions.pop(session).maps:
            token_map.release()
        self._ranking.close(session)
        self._read.pop(session, None)

    def _maps(self, tree: TokenTree) -> list[TokenMap]:
        """Map a session into every pool. A head has no row of the first token in step 0, nor of the first two in step 1."""
        skipped, exact = int(self.redraws), not (self._model.recurrent and self.redraws)
        return [TokenMap(pool, tree, step + skipped, exact) for step, pool in enumerate(self._model.pools)]

    def _below(
        self, frontier: Sequence[Frontier], inputs: Mapping[SessionKey, Sequence[StepInput]], levels: int
    ) -> dict[SessionKey, DescentPart]:
        """Make the parts of the sessions that are descended for: those whose frontier is expanded now, as deep as there is room for all."""
        if levels == 1:
            return {}
        scored = [
            (part, part.scoring)
            for part in frontier
            if part.scoring is not None and part.session in inputs and inputs[part.session][0].wanted
            if not self._ranking.waits(part.session)
        ]
        most = max((len(part.slots) for part, _ in scored), default=0) * self._ranking.children
        width = min(most, max((scoring.width for _, scoring in scored), default=0))
        depth = min(levels - 1, self.room // max(1, len(scored) * width))
        return {
            part.session: DescentPart.of(
                part, scoring, self._sessions[part.session].maps[0], self._positions(part), depth, width
            )
            for part, scoring in scored
            if depth
        }

    def _run(
        self,
        parts: Sequence[Sequence[StepInput]],
        frontier: Sequence[Frontier],
        below: Mapping[SessionKey, DescentPart],
    ) -> Found:
        if not parts:
            return {}
        work = [StepInput.joined(of_step) for of_step in zip(*parts, strict=True)]
        logits = self._forwards(work)
        wanted = [number for part in work for number in part.wanted]
        if not wanted:
            wait_for(self._model.device)  # else it would seem to take no time, and the next one all of it
            return {}
        whole = logits[0] if len(logits) == 1 else torch.cat(logits)  # they are large: no copy where none is needed
        ranked = self._ranking.rank(whole, *self._askers(frontier, wanted))
        rows = _rows(frontier, wanted)
        going = {session: below[session] for session in rows if session in below}
        drawn = self._draw([*going.values()], [rows[session] for session in going], ranked)
        fetched, numbers = Fetched(ranked, drawn), {session: number for number, session in enumerate(going)}
        return {
            part.session: fetched.children(rows[part.session], self._positions(part), numbers.get(part.session))
            for part in frontier
            if part.session in rows
        }

    def _draw(self, parts: Sequence[DescentPart], rows: Sequence[Ints], frontier: Ranked) -> list[Drawn]:
        """Draw the levels below those nodes of each part that have these rows among all that were ranked."""
        if not parts:
            return []
        padding = exactly if self._descents is None else fitting
        inputs = DescentInputs.of(parts, rows, self._model.pools[0].tables, self._model.device, padding)
        sessions, spans = [part.session for part in parts], [part.span for part in parts]
        ranking = self._ranking.on_device(sessions, inputs.lent.shape[2], spans)
        children = frontier.at(inputs.rows.view(-1))
        descent = Descent(inputs, ranking, children, int(self.redraws))
        return descent.draw(self._model) if self._descents is None else self._descents.draw(descent)

    def _forwards(self, work: Sequence[StepInput]) -> list[Tensor]:
        """Give the logits of every step that has rows."""
        if self.turns is not None:
            return self.turns.run(work, len(self._sessions))
        return [self._model.run(step, part) for step, part in enumerate(work) if part.rows]

    def _askers(
        self, frontier: Sequence[Frontier], wanted: Sequence[int]
    ) -> tuple[list[SessionKey], list[int], list[Sequence[int]]]:
        """Give session, position and path of each node by its number among all of the frontier's."""
        sessions = [part.session for part in frontier for _ in part.slots]
        positions = np.concatenate([self._positions(part) for part in frontier])
        paths = [path for part in frontier for path in self._paths(part)]
        return [sessions[n] for n in wanted], positions.take(wanted).tolist(), [paths[n] for n in wanted]

    def _paths(self, part: Frontier) -> list[Sequence[int]]:
        """List the tokens from below the root to each node, where they matter."""
        if not self._ranking.penalises(part.session):
            return [()] * len(part.slots)
        tree = self._sessions[part.session].tree
        return [[tree.token_of(above) for above in tree.path(slot)] for slot in part.slots.tolist()]

    def _positions(self, part: Frontier) -> Ints:
        return self._sessions[part.session].tree.positions.take(part.slots)

    def _inputs(self, frontier: Sequence[Frontier]) -> dict[SessionKey, list[StepInput]]:
        """Make every session's part of each step.

        Pending contexts share the budget, the shortest first: a bonus must not wait for a prompt.
        """
        inputs: dict[SessionKey, list[StepInput]] = {}
        starts = _starts(frontier)
        pending = [self._sessions[part.session].pending for part in frontier]
        budget = self._budget
        for i in sorted((i for i, count in enumerate(pending) if count), key=pending.__getitem__):
            count = min(self._sessions[frontier[i].session].readable, budget)
            budget -= count
            if count:
                inputs[frontier[i].session] = self._extend(frontier[i], count, starts[i])
        for part, start, count in zip(frontier, starts, pending, strict=True):
            if not count:
                inputs[part.session] = self._branch(self._sessions[part.session], part.slots, start)
        return inputs

    def _extend(self, part: Frontier, count: int, root: int) -> list[StepInput]:
        """Make rows of the next `count` tokens in every step that lacks them.

        `root` is wanted as soon as it is among them, and with it the nodes that are to be expanded beside it.
        """
        state, beside = self._sessions[part.session], part.slots[1:]
        inputs = [StepInput() for _ in state.maps]
        stop = state.maps[0].first + state.maps[0].computed + count
        complete = stop == len(state.tokens)
        if state.features is not None:
            self._read[part.session] = stop - 1
            inputs[0].fed += state.features.take(count)
        for step, (token_map, work) in enumerate(zip(state.maps, inputs, strict=True)):
            first, done = token_map.computed, stop - token_map.first
            if done > first:
                if step:
                    work.drawn.append(state.maps[step - 1].context_slots(first, done))
                work.wanted += [root] if complete and step == 0 else ()
                work.rows.append(token_map.read(state.tokens, stop, [count - 1] if work.wanted else ()))
            if complete:
                self._add_nodes(state, step, work, beside, root + 1)
        return inputs

    def _branch(self, state: _Session, nodes: Ints, start: int) -> list[StepInput]:
        """Make rows of these nodes in every step in which they are due."""
        inputs = [StepInput() for _ in state.maps]
        for step, work in enumerate(inputs):
            self._add_nodes(state, step, work, nodes, start)
        return inputs

    def _add_nodes(self, state: _Session, step: int, work: StepInput, nodes: Ints, start: int) -> None:
        """Make a row of the nodes that a step lacks, and of these if they are due there. Each of these is wanted from its lowest step.

        One that is drawn anew has its rows in the steps above that one, and they are right for good.
        """
        token_map, lacked = state.maps[step], len(state.maps[step].missing)
        asked = self._wanted(state, step, nodes) | ~token_map.held.take(nodes)
        due = (self._due(state, step, nodes) & asked).nonzero()[0]
        token_map.add(nodes.take(due))
        if not len(token_map.missing):
            return
        wanted = self._wanted(state, step, nodes.take(due)).nonzero()[0]
        work.wanted += (due.take(wanted) + start).tolist()
        self._add_branch(state, step, work, (wanted + lacked).tolist())

    def _add_branch(self, state: _Session, step: int, work: StepInput, logits_at: Sequence[int]) -> None:
        token_map = state.maps[step]
        if state.features is not None:
            source = token_map if self._model.recurrent else state.maps[step - 1]
            work.drawn.append(source.slots_above(token_map.missing))
        work.rows.append(token_map.branch(logits_at))

    def _descend(self, state: _Session) -> None:
        """Give expanded nodes that have come nearer to the root slots in the steps in which they are due now. Raises OutOfPages."""
        expanded = np.logical_or.reduce([token_map.held for token_map in state.maps]).nonzero()[0]
        for step, token_map in enumerate(state.maps):
            token_map.add(expanded.compress(self._due(state, step, expanded) & ~token_map.held.take(expanded)))

    def _wanted(self, state: _Session, step: int, nodes: Ints) -> Flags:
        """Tell of which of these nodes this step has the children."""
        return self._model.recurrent | (state.tree.positions.take(nodes) == state.root + step)

    def _due(self, state: _Session, step: int, nodes: Ints) -> Flags:
        """Tell which of these expanded nodes have a row in this step: with a recurrent model all of them, in its only one."""
        if self._model.recurrent:
            return np.ones(len(nodes), dtype=np.bool_)
        positions = state.tree.positions.take(nodes)
        return (positions >= state.maps[step].first) & (positions <= state.root + step)


def _rows(frontier: Sequence[Frontier], wanted: Sequence[int]) -> dict[SessionKey, Ints]:
    """Tell of each session whose nodes were asked for which of the ranked rows they are."""
    row_of = np.full(sum(len(part.slots) for part in frontier), -1)
    row_of[wanted] = np.arange(len(wanted))
    starts = zip(frontier, _starts(frontier), strict=True)
    return {part.session: row_of[start : start + len(part.slots)] for part, start in starts if row_of[start] >= 0}


def _starts(frontier: Sequence[Frontier]) -> list[int]:
    """Number the first node of each session, counting over all of them."""
    return [0, *accumulate(len(part.slots) for part in frontier)][: len(frontier)]
