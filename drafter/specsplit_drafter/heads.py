"""The drafter with a head on the target's features: EAGLE, EAGLE-3 and multi-layer EAGLE.

A head reads, for every token u, its embedding and a *state* of its parent, and leaves a state of u from which u's children are predicted.
Step j of the head (from 0) keeps its rows in a KV pool of its own. With positions in the text counted from 0,

    S_j(u) = layer_j(embedding(u), S_{j-1}(parent of u)), attending to the rows of step j on u's path      S_{-1}(v) = fused feature of v

The row of a token at position p is row p - (j + 1) of its step: earlier tokens have none. Two kinds of head:

    multi-layer  a node at depth d below the root is predicted from step d, so that its state comes from a true feature whatever the tree
                 looks like. It has rows in steps d and up (its descendants attend to those), so no node as deep as there are steps can be
                 expanded. A row depends on tokens and features only: it stays right for good.
    recurrent    one step. The feature of a node is not there yet: its parent's own state stands in for it. Once the node is committed,
                 its row is computed again, in the same slot, from the true feature.

States of rows lie beside their KV, by slot (state_width numbers each), so that whoever has a slot has the state, and the inputs of a
forward are one gather.

Draft extend: after a commit the committed tokens' pending rows are computed first, in a forward in which the session has no nodes but
those that survived and have come so near to the root that they are due in lower steps. The root gets its children from it; nodes that
survived keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specsplit.features import FeatureFormat, FeatureLayout, FeatureNeed, Features
from specsplit.model.batch import Ints, Row
from specsplit.model.heads import Head, HeadRunner
from specsplit.model.pages import Slots
from specsplit.values import DrafterInfo, Sampling
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
from specsplit_drafter.token_map import CONTEXT_BUDGET, TokenMap, room

_NONE: Final[Ints] = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class _Session:
    tokens: list[int]
    """Committed, the root last."""
    maps: list[TokenMap]
    """By step."""
    features: FeatureBuffer
    nodes: dict[int, FrontierNode] = field(default_factory=dict[int, FrontierNode])
    """Expanded ones below the root, by id, parents before children."""

    @property
    def root(self) -> int:
        """Position of the root."""
        return len(self.tokens) - 1

    @property
    def readable(self) -> int:
        """Pending rows of step 0 whose features are there: row i is of the token at i + 1, and reads feature i."""
        return min(self.maps[0].pending, self.features.arrived - self.maps[0].computed)

    @property
    def stalled(self) -> bool:
        """True if the root cannot be expanded, or read towards, with the features that are there; a first token never can."""
        return self.root == 0 or (self.maps[0].pending > 0 and self.readable == 0)


@dataclass(slots=True)
class _Pass:
    """What one expansion asks of one step, for one session or for some. Rows fed with features come before those that draw on states."""

    rows: list[Row] = field(default_factory=list[Row])
    fed: list[Tensor] = field(default_factory=list[Tensor])
    """Features [n, width] for the first rows."""
    drawn: list[Slots] = field(default_factory=list[Slots])
    """Slots [n] whose states the other rows read."""
    wanted: list[int] = field(default_factory=list[int])
    """Indices in the frontier that are predicted from this step."""
    at: list[int] = field(default_factory=list[int])
    """For each of those, its index among the tokens of `rows`."""
    num_tokens: int = 0

    def add(self, row: Row, wanted: Sequence[int] = (), at: Iterable[int] = ()) -> None:
        """One more row; `at` are indices among its own tokens."""
        self.rows.append(row)
        self.wanted.extend(wanted)
        self.at.extend(self.num_tokens + i for i in at)
        self.num_tokens += row.num_tokens

    @staticmethod
    def joined(passes: Sequence[_Pass]) -> _Pass:
        """One that does what all of these do, in order; of several sessions, those that are fed come first."""
        whole = _Pass()
        for part in passes:
            whole.rows += part.rows
            whole.fed += part.fed
            whole.drawn += part.drawn
            whole.wanted += part.wanted
            whole.at += [whole.num_tokens + i for i in part.at]
            whole.num_tokens += part.num_tokens
        return whole

    @property
    def write_slots(self) -> Slots:
        """[num_tokens]"""
        return np.concatenate([_NONE, *(row.write_slots for row in self.rows)])


class HeadProposer:
    """Proposer of the kinds that read features. It has one pool of `num_slots` slots for each step of the head.

    need: the head's own, perhaps with another format, or with a projection: then features come projected.
    """

    renews_root: bool = True

    def __init__(
        self,
        head: Head,
        num_slots: int,
        children: int,
        *,
        need: FeatureNeed | None = None,
        context_budget: int = CONTEXT_BUDGET,
    ) -> None:
        shape = head.shape
        self._head = head
        self._recurrent = shape.recurrent
        self._need = need or shape.need
        self._info = replace(shape.info, features=self._need)
        self._runners = [HeadRunner(head, step, num_slots) for step in range(shape.num_steps)]
        sources = 1 if shape.recurrent else shape.num_steps - 1  # nobody reads the last step's states
        self._states = [
            torch.zeros(num_slots, shape.state_width, dtype=head.dtype, device=head.device) for _ in range(sources)
        ]
        width = self._need.layout(self._need.hidden_size, FeatureFormat.FLOAT32).width
        self._no_features = torch.empty(0, width, dtype=head.dtype)
        self._budget = context_budget
        self._ranking = Ranking(children, shape.vocabulary.size, head.device)
        self._isolation = Isolation()
        self._sessions: dict[SessionKey, _Session] = {}
        self._read: dict[SessionKey, int] = {}

    @property
    def info(self) -> DrafterInfo:
        """What it says of itself."""
        return self._info

    @property
    def pages(self) -> ProposerPages:
        """Slots in use, of all steps together."""
        total = sum(runner.pool.total_pages for runner in self._runners)
        return ProposerPages(total - sum(runner.pool.free_pages for runner in self._runners), total)

    @property
    def room(self) -> int:
        """See `token_map.room`; a node has one slot in a step at most."""
        return min(room(runner.pool, len(self._sessions)) for runner in self._runners)

    @property
    def max_depth(self) -> int:
        """A recurrent head goes on and on; another one has a step for every level."""
        return UNBOUNDED if self._recurrent else len(self._runners)

    def open(self, session: SessionKey, tokens: Sequence[int], sampling: Sampling, prompt_tokens: int = 0) -> None:
        """Take slots for the committed tokens; their rows are computed as features arrive. Raises OutOfPages."""
        maps = [TokenMap(runner.pool, step + 1, not self._recurrent) for step, runner in enumerate(self._runners)]
        state = _Session(list(tokens), maps, FeatureBuffer(self._head.dtype))
        self._sessions[session] = state
        self._ranking.open(session, tokens, sampling, prompt_tokens)
        try:
            for token_map in maps:
                token_map.reserve(len(tokens))
        except BaseException:
            self.close(session)
            raise

    def commit(self, session: SessionKey, advance: Advance) -> None:
        """Take over and free slots, and take new ones for the rest and for survivors that are due in a lower step. Raises OutOfPages."""
        state = self._sessions[session]
        state.tokens.extend(advance.tokens)
        self._ranking.commit(session, advance)
        state.nodes = {node_id: node for node_id, node in state.nodes.items() if node_id in advance.survivors}
        for step, token_map in enumerate(state.maps):
            token_map.commit(advance, len(state.tokens))
            token_map.add(node for node in self._due(state, step, state.nodes.values()) if node.node not in token_map)

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """See FeatureBuffer.add."""
        state = self._sessions[session]
        state.features.add(features, layout, state.root)

    def stalled(self, session: SessionKey) -> bool:
        """True if the root waits for features, and all that have come are read."""
        return self._sessions[session].stalled

    def pending(self, session: SessionKey) -> int:
        """Committed tokens, the first one apart, without a row in the first step."""
        return self._sessions[session].maps[0].pending

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """See Proposer."""
        read, self._read = self._read, {}
        return tuple(read.items())

    def expand(self, frontier: Sequence[FrontierNode]) -> list[Expanded]:
        """One forward of each step over all nodes, and over as much pending context as the budget and the features allow."""
        return self._isolation.expand(frontier, self._passes(frontier), lambda parts: self._steps(parts, frontier))

    def close(self, session: SessionKey) -> None:
        """Free every slot."""
        for token_map in self._sessions.pop(session).maps:
            token_map.release()
        self._read.pop(session, None)
        self._ranking.close(session)

    def _steps(self, parts: Sequence[Sequence[_Pass]], frontier: Sequence[FrontierNode]) -> Found:
        """Steps write KV and states of their own rows and nothing else, so they may be repeated."""
        passes = [_Pass.joined(of_step) for of_step in zip(*parts, strict=True)]
        logits = [self._run(step, work) for step, work in enumerate(passes)]
        wanted = [i for work in passes for i in work.wanted]
        if not wanted:
            return {}
        ranked = self._ranking.rank(torch.cat(logits), [frontier[i] for i in wanted])
        return dict(zip(wanted, ranked, strict=True))

    def _passes(self, frontier: Sequence[FrontierNode]) -> dict[SessionKey, list[_Pass]]:
        """Every session's part of each step. Pending contexts share the budget, the shortest first: a bonus must not wait for a prompt."""
        passes: dict[SessionKey, list[_Pass]] = {}
        members = by_session(frontier)
        pending = {key: self._sessions[key].maps[0].pending for key in members}
        budget = self._budget
        for key in sorted((key for key in members if pending[key]), key=pending.__getitem__):
            count = min(self._sessions[key].readable, budget)
            budget -= count
            if count:
                passes[key] = [_Pass() for _ in self._runners]
                self._extend(key, count, members[key], passes[key])
        for key in members:
            if not pending[key]:
                passes[key] = [_Pass() for _ in self._runners]
                self._branch(self._sessions[key], frontier, members[key], passes[key])
        return passes

    def _extend(self, key: SessionKey, count: int, root: Sequence[int], passes: Sequence[_Pass]) -> None:
        """Rows of the next `count` tokens in every step that lacks them. `root` is wanted as soon as it is among them."""
        state = self._sessions[key]
        stop = state.maps[0].first + state.maps[0].computed + count
        complete = stop == len(state.tokens)
        self._read[key] = stop - 1
        passes[0].fed += state.features.take(count)
        for step, (token_map, work) in enumerate(zip(state.maps, passes, strict=True)):
            first, done = token_map.computed, stop - token_map.first
            if done > first:
                if step:
                    work.drawn.append(state.maps[step - 1].context_slots(first, done))
                is_last = complete and step == 0
                work.add(token_map.read(state.tokens, stop), root if is_last else (), [count - 1] if is_last else ())
            if complete and token_map.missing:
                self._add_branch(state, step, work)

    def _branch(
        self, state: _Session, frontier: Sequence[FrontierNode], members: Sequence[int], passes: Sequence[_Pass]
    ) -> None:
        """Rows of these nodes in every step in which they are due; each is wanted from the lowest."""
        index = {frontier[i].node: i for i in members}
        nodes = [frontier[i] for i in members]
        state.nodes.update((node.node, node) for node in nodes)
        for step, work in enumerate(passes):
            due = list(self._due(state, step, nodes))
            if due:
                state.maps[step].add(due)
                lowest = [n for n, node in enumerate(due) if self._recurrent or node.position == state.root + step]
                self._add_branch(state, step, work, [index[due[n].node] for n in lowest], lowest)

    def _add_branch(
        self, state: _Session, step: int, work: _Pass, wanted: Sequence[int] = (), at: Sequence[int] = ()
    ) -> None:
        token_map = state.maps[step]
        source = token_map if self._recurrent else state.maps[step - 1]
        work.drawn.append(source.slots_of(node.parent for node in token_map.missing))
        work.add(token_map.branch(), wanted, at)

    def _due(self, state: _Session, step: int, nodes: Iterable[FrontierNode]) -> Iterable[FrontierNode]:
        """Those of the expanded nodes that have a row in this step."""
        if self._recurrent:
            return nodes
        deepest, earliest = state.root + step, state.maps[step].first
        return (node for node in nodes if earliest <= node.position <= deepest)

    @torch.inference_mode()
    def _run(self, step: int, work: _Pass) -> Tensor:
        """Compute the rows of one step -> logits [len(wanted), V]. No rows: [0, V], and no effect."""
        hidden, states = self._runners[step].forward(work.rows, self._inputs(step, work))
        if step < len(self._states):
            self._states[step].index_copy_(0, self._tensor(work.write_slots), states)
        return self._head.logits(step, hidden[self._tensor(np.array(work.at, dtype=np.int64))])

    def _inputs(self, step: int, work: _Pass) -> Tensor:
        """States [num_tokens, state_width] of the parents of the rows' tokens."""
        parts: list[Tensor] = []
        if step == 0:
            features = torch.cat([self._no_features, *work.fed]).to(self._head.device)
            parts.append(self._head.fuse(features, projected=bool(self._need.projection)))
        if self._recurrent or step:
            source = self._states[0 if self._recurrent else step - 1]
            parts.append(source.index_select(0, self._tensor(np.concatenate([_NONE, *work.drawn]))))
        return torch.cat(parts)

    def _tensor(self, indices: Ints) -> Tensor:
        return torch.from_numpy(indices).to(self._head.device, non_blocking=True)
