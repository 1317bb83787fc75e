"""The drafter with a small language model of the target's vocabulary.

What a session's tokens look like in the KV pool is `token_map`'s affair. A prompt is read in chunks so that it does not keep other
sessions waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specsplit.model.batch import Row
from specsplit.model.causal_lm import CausalLM
from specsplit.values import DrafterInfo, DrafterKind, Sampling
from specsplit_drafter.isolation import Found, Isolation
from specsplit_drafter.proposer import (
    Advance,
    Expanded,
    FrontierNode,
    NoFeatures,
    ProposerPages,
    SessionKey,
    by_session,
)
from specsplit_drafter.ranking import Ranking
from specsplit_drafter.token_map import CONTEXT_BUDGET, TokenMap, room


@dataclass(slots=True)
class _Session:
    tokens: list[int]
    """Committed, the root last."""
    map: TokenMap


@dataclass(frozen=True, slots=True)
class _Work:
    """One session's part of a forward."""

    row: Row
    wanted: list[int]
    """Indices in the frontier, in the order of the row's logits."""


class StandaloneProposer(NoFeatures):
    """Proposer of kind standalone. The model's pool must have pages of one slot, and be nobody else's."""

    def __init__(self, model: CausalLM, children: int, context_budget: int = CONTEXT_BUDGET) -> None:
        if model.pool.page_size != 1:
            raise ValueError(f"the drafter's KV pool has pages of {model.pool.page_size} slots, expected 1")
        self._model = model
        self._pool = model.pool
        self._budget = context_budget
        self._sessions: dict[SessionKey, _Session] = {}
        self._ranking = Ranking(children, model.info.vocabulary.size, model.device)
        self._isolation = Isolation()
        facts = model.info
        self._info = DrafterInfo(DrafterKind.STANDALONE, facts.model, facts.vocabulary, facts.max_context)

    @property
    def info(self) -> DrafterInfo:
        """What it says of itself."""
        return self._info

    @property
    def pages(self) -> ProposerPages:
        """KV slots in use."""
        return ProposerPages(self._pool.total_pages - self._pool.free_pages, self._pool.total_pages)

    @property
    def room(self) -> int:
        """See `token_map.room`."""
        return room(self._pool, len(self._sessions))

    def open(self, session: SessionKey, tokens: Sequence[int], sampling: Sampling, prompt_tokens: int = 0) -> None:
        """Take slots for the committed tokens; their KV is computed later. Raises OutOfPages."""
        state = _Session(list(tokens), TokenMap(self._pool))
        state.map.reserve(len(tokens))
        self._sessions[session] = state
        self._ranking.open(session, tokens, sampling, prompt_tokens)

    def commit(self, session: SessionKey, advance: Advance) -> None:
        """Take over the slots of accepted nodes, free those of the dead, take new ones for the rest. Raises OutOfPages."""
        state = self._sessions[session]
        state.tokens.extend(advance.tokens)
        self._ranking.commit(session, advance)
        state.map.commit(advance, len(state.tokens))

    def pending(self, session: SessionKey) -> int:
        """Committed tokens without KV."""
        return self._sessions[session].map.pending

    def expand(self, frontier: Sequence[FrontierNode]) -> list[Expanded]:
        """One forward over all nodes, and over as much pending context as the budget allows."""
        return self._isolation.expand(frontier, self._work(frontier), lambda work: self._run(work, frontier))

    def close(self, session: SessionKey) -> None:
        """Free every slot."""
        self._sessions.pop(session).map.release()
        self._ranking.close(session)

    def _run(self, work: Sequence[_Work], frontier: Sequence[FrontierNode]) -> Found:
        """A forward writes KV and nothing else, so it may be repeated."""
        logits = self._model.forward([part.row for part in work])
        wanted = [i for part in work for i in part.wanted]
        if not wanted:
            return {}
        ranked = self._ranking.rank(logits, [frontier[i] for i in wanted])
        return dict(zip(wanted, ranked, strict=True))

    def _work(self, frontier: Sequence[FrontierNode]) -> dict[SessionKey, _Work]:
        """Rows by session. Pending contexts share the budget, the shortest first: a bonus must not wait for a prompt."""
        members = by_session(frontier)
        budget = self._budget
        work: dict[SessionKey, _Work] = {}
        for key in sorted(members, key=lambda key: self._sessions[key].map.pending):
            state = self._sessions[key]
            if not state.map.pending:
                state.map.add(frontier[i] for i in members[key])
                work[key] = _Work(state.map.branch(range(len(members[key]))), members[key])
            elif budget > 0:
                count = min(state.map.pending, budget)
                budget -= count
                work[key] = _context_work(state, count, members[key])
        return work


def _context_work(state: _Session, count: int, wanted: list[int]) -> _Work:
    """The next `count` pending tokens; logits only if the root is one of them."""
    stop = state.map.computed + count
    complete = stop == len(state.tokens)
    row = state.map.read(state.tokens, stop, [count - 1] if complete else [])
    return _Work(row, wanted if complete else [])
