"""The drafter with a model: its sessions, their pending context, and what one expansion asks of each step of the model.

Draft extend: after a commit the committed tokens' pending rows are computed first, in a forward in which the session has no nodes but
those that survived and have come so near to the root that they are due in lower steps. The root gets its children from it; nodes that
survived keep theirs. A prompt is read in the same way, in parts so that it does not keep other sessions waiting, and with a head as its
features arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureLayout, Features
from specsplit.values import DrafterInfo, Sampling
from specsplit_drafter.draft_model import DraftModel, StepInput
from specsplit_drafter.feature_buffer import FeatureBuffer
from specsplit_drafter.isolation import Found, Isolation
from specsplit_drafter.proposer import (
    UNBOUNDED,
    Advance,
    Expanded,
    FrontierNode,
    ProposerPages,
    SessionKey,
    by_session,
)
from specsplit_drafter.ranking import Ranking
from specsplit_drafter.token_map import TokenMap, room

CONTEXT_BUDGET: Final = 512
"""Pending tokens in one expansion at most, all sessions together."""


@dataclass(slots=True)
class _Session:
    tokens: list[int]
    """Committed, the root last."""
    sampling: Sampling
    maps: list[TokenMap]
    """By step."""
    features: FeatureBuffer | None
    nodes: dict[int, FrontierNode] = field(default_factory=dict[int, FrontierNode])
    """Expanded ones below the root, by id, parents before children."""

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

    def __init__(self, model: DraftModel, children: int, context_budget: int = CONTEXT_BUDGET) -> None:
        self._model = model
        self._budget = context_budget
        self._ranking = Ranking(children, model.vocab_size)
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
    def room(self) -> int:
        """Nodes that have a free slot in every step."""
        return min(room(pool, len(self._sessions)) for pool in self._model.pools)

    @property
    def max_depth(self) -> int:
        """A recurrent model goes on and on; another one has a step for every level."""
        return UNBOUNDED if self._model.recurrent else len(self._model.pools)

    @property
    def renews_root(self) -> bool:
        """True for a model that reads features: a node is expanded without the feature of its parent."""
        return self._model.feature_dtype is not None

    def open(self, session: SessionKey, tokens: Sequence[int], sampling: Sampling) -> None:
        """Take slots for the committed tokens, whose rows are computed later. Raises OutOfPages."""
        dtype = self._model.feature_dtype
        features = None if dtype is None else FeatureBuffer(dtype)
        self._sessions[session] = _Session(list(tokens), sampling, self._maps(), features)
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
        state.nodes = {node_id: node for node_id, node in state.nodes.items() if node_id in advance.survivors}
        for step, token_map in enumerate(state.maps):
            token_map.commit(advance, len(state.tokens))
            token_map.add(node for node in self._due(state, step, state.nodes.values()) if node.node not in token_map)

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """Take in what FeatureBuffer.add takes, if the model reads features."""
        state = self._sessions[session]
        if state.features is None:
            raise InvalidRequest("features", "were sent to a drafter that reads none")
        state.features.add(features, layout, state.root)

    def stalled(self, session: SessionKey) -> bool:
        """True if the root waits for features, and all that have come are read."""
        return self._sessions[session].stalled

    def pending(self, session: SessionKey) -> int:
        """Committed tokens without a row in the first step; of a head, the first token apart, which never has one."""
        return self._sessions[session].pending

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """Sessions whose features were read since the last call, and how far."""
        read, self._read = self._read, {}
        return tuple(read.items())

    def expand(self, frontier: Sequence[FrontierNode]) -> list[Expanded]:
        """One forward of each step over all nodes, and over as much pending context as the budget and the features allow."""
        return self._isolation.expand(frontier, self._inputs(frontier), lambda parts: self._run(parts, frontier))

    def close(self, session: SessionKey) -> None:
        """Free every slot."""
        for token_map in self._sessions.pop(session).maps:
            token_map.release()
        self._read.pop(session, None)

    def _maps(self) -> list[TokenMap]:
        """A head has no row of the first token in step 0, nor of the first two in step 1."""
        skipped, exact = int(self.renews_root), not (self._model.recurrent and self.renews_root)
        return [TokenMap(pool, step + skipped, exact) for step, pool in enumerate(self._model.pools)]

    def _run(self, parts: Sequence[Sequence[StepInput]], frontier: Sequence[FrontierNode]) -> Found:
        work = [StepInput.joined(of_step) for of_step in zip(*parts, strict=True)]
        logits: list[Tensor] = [self._model.run(step, part) for step, part in enumerate(work) if part.rows]
        wanted = [i for part in work for i in part.wanted]
        if not wanted:
            return {}
        samplings = [self._sessions[frontier[i].session].sampling for i in wanted]
        ranked = self._ranking.rank(torch.cat(logits), samplings, [frontier[i].position for i in wanted])
        return dict(zip(wanted, ranked, strict=True))

    def _inputs(self, frontier: Sequence[FrontierNode]) -> dict[SessionKey, list[StepInput]]:
        """Every session's part of each step. Pending contexts share the budget, the shortest first: a bonus must not wait for a prompt."""
        inputs: dict[SessionKey, list[StepInput]] = {}
        members = by_session(frontier)
        pending = {key: self._sessions[key].pending for key in members}
        budget = self._budget
        for key in sorted((key for key in members if pending[key]), key=pending.__getitem__):
            count = min(self._sessions[key].readable, budget)
            budget -= count
            if count:
                inputs[key] = self._extend(key, count, members[key])
        for key in members:
            if not pending[key]:
                inputs[key] = self._branch(self._sessions[key], frontier, members[key])
        return inputs

    def _extend(self, key: SessionKey, count: int, root: Sequence[int]) -> list[StepInput]:
        """Rows of the next `count` tokens in every step that lacks them. `root` is wanted as soon as it is among them."""
        state = self._sessions[key]
        inputs = [StepInput() for _ in state.maps]
        stop = state.maps[0].first + state.maps[0].computed + count
        complete = stop == len(state.tokens)
        if state.features is not None:
            self._read[key] = stop - 1
            inputs[0].fed += state.features.take(count)
        for step, (token_map, work) in enumerate(zip(state.maps, inputs, strict=True)):
            first, done = token_map.computed, stop - token_map.first
            if done > first:
                if step:
                    work.drawn.append(state.maps[step - 1].context_slots(first, done))
                work.wanted += root if complete and step == 0 else ()
                work.rows.append(token_map.read(state.tokens, stop, [count - 1] if work.wanted else ()))
            if complete and token_map.missing:
                self._add_branch(state, step, work)
        return inputs

    def _branch(self, state: _Session, frontier: Sequence[FrontierNode], members: Sequence[int]) -> list[StepInput]:
        """Rows of these nodes in every step in which they are due; each is wanted from the lowest."""
        inputs = [StepInput() for _ in state.maps]
        index = {frontier[i].node: i for i in members}
        nodes = [frontier[i] for i in members]
        state.nodes.update((node.node, node) for node in nodes)
        for step, work in enumerate(inputs):
            due = list(self._due(state, step, nodes))
            if due:
                state.maps[step].add(due)
                lowest = [
                    n for n, node in enumerate(due) if self._model.recurrent or node.position == state.root + step
                ]
                work.wanted += [index[due[n].node] for n in lowest]
                self._add_branch(state, step, work, lowest)
        return inputs

    def _add_branch(self, state: _Session, step: int, work: StepInput, logits_at: Sequence[int] = ()) -> None:
        token_map = state.maps[step]
        source = token_map if self._model.recurrent else state.maps[step - 1]
        work.drawn.append(source.slots_of(node.parent for node in token_map.missing))
        work.rows.append(token_map.branch(logits_at))

    def _due(self, state: _Session, step: int, nodes: Iterable[FrontierNode]) -> Iterable[FrontierNode]:
        """Those of the expanded nodes that have a row in this step."""
        if self._model.recurrent:
            return nodes
        deepest, earliest = state.root + step, state.maps[step].first
        return (node for node in nodes if earliest <= node.position <= deepest)
