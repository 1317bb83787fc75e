"""Which sessions the next step takes: admission by KV pages, chunked prefill, what is recomputed, and who is worth waiting for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from specsplit.errors import Exhausted, InvalidRequest
from specsplit.model.batch import Row
from specsplit.model.pages import PagePool, PageTable
from specsplit.speculation import Draft
from specsplit.values import ModelInfo
from specsplit_verifier.cost import StepCost
from specsplit_verifier.session import Session
from specsplit_verifier.step import ChunkInput, StepInput, TreeInput

RECOMPUTE_TOKENS = 32  # of one session in a step beside others: about as much as two sessions bring to it

OLDEST_PART = 4  # of the budget one part in so many is for the oldest prompt, however many shorter ones come


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step works on."""

    decoding: list[Session]
    prefilling: list[tuple[Session, int]]
    """(session, prompt tokens to prefill)."""
    recomputing: list[tuple[Session, range]] = field(default_factory=list[tuple[Session, range]])
    """(session, positions to run once more for features that its drafter lacks)."""

    def step(self, now: float) -> StepInput:
        """Take the drafts and lay out the rows."""
        trees = [_tree(session, session.take()) for session in self.decoding]
        chunks = [_chunk(session, positions, recomputed=True) for session, positions in self.recomputing]
        for session, size in self.prefilling:
            chunks.append(_chunk(session, range(session.kv_length, session.kv_length + size)))
        return StepInput(trees, chunks, now)


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing to step now; look again after so many seconds, or at the next event (None: only then)."""

    seconds: float | None


class Scheduler:
    """Sessions in order of arrival: waiting for room, then running."""

    def __init__(self, info: ModelInfo, pool: PagePool, *, max_sessions: int, step_token_budget: int) -> None:
        self._info = info
        self.pool = pool
        self._max_sessions = max_sessions
        self._budget = step_token_budget
        self.waiting: deque[Session] = deque()
        self.running: dict[int, Session] = {}

    def max_tokens_of(self, prompt_tokens: int, max_tokens: int | None, num_draft_tokens: int) -> int:
        """Tokens a session may generate; without `max_tokens` as many as context and KV pool hold.

        Raises InvalidRequest, with the numbers, if prompt and output exceed the context.
        """
        left = self._info.max_context - prompt_tokens
        if left < 1:
            raise InvalidRequest(
                "token_ids",
                f"has {prompt_tokens} tokens, which leaves no room in the context of {self._info.max_context}",
            )
        if max_tokens is not None and max_tokens > left:
            raise InvalidRequest(
                "max_tokens",
                f"is {max_tokens}, which with {prompt_tokens} prompt tokens exceeds the context of "
                f"{self._info.max_context}; at most {left} fit",
            )
        if max_tokens is not None:
            return max_tokens
        return max(1, min(left, self.pool.num_slots - prompt_tokens - num_draft_tokens))

    def page_table(self) -> PageTable:
        """For a new session; without pages."""
        return PageTable(self.pool)

    def submit(self, session: Session) -> None:
        """Queue a session. Raises, with the numbers, InvalidRequest if it can never fit and Exhausted if too many wait already."""
        pages = self._pages(session)
        if pages > self.pool.total_pages:
            raise InvalidRequest(
                "token_ids" if session.request.stopping.max_tokens is None else "max_tokens",
                f"asks for too much: the session needs {pages} KV pages of {self.pool.page_size} tokens "
                f"({session.prompt_length} prompt, {session.stops.max_tokens} to generate, {session.max_draft_tokens} drafted); "
                f"this verifier has {self.pool.total_pages} in all, so it can never fit; send a shorter prompt, or ask for less",
            )
        if len(self.waiting) >= self._max_sessions:
            raise Exhausted(
                f"{len(self.running)} sessions are running and {len(self.waiting)} wait already", retry_after_s=1.0
            )
        self.waiting.append(session)

    def admit(self) -> list[Session]:
        """Move sessions that fit now from waiting to running, in order of arrival; their pages are theirs from here on."""
        admitted: list[Session] = []
        while self.waiting and len(self.running) < self._max_sessions:
            session = self.waiting[0]
            if self._pages(session) > self.pool.free_pages:
                break  # no overtaking: a large session must not starve
            session.table.reserve(self._tokens(session))
            session.tokens = list(session.request.tokens)
            self.running[session.id] = self.waiting.popleft()
            admitted.append(session)
        return admitted

    def find(self, session_id: int) -> Session | None:
        """A waiting or running session."""
        return self.running.get(session_id) or next((s for s in self.waiting if s.id == session_id), None)

    def remove(self, session: Session) -> None:
        """Forget a session and free its pages."""
        if self.running.pop(session.id, None) is None:
            self.waiting.remove(session)
        session.table.release()

    def choose(self, now: float, cost: StepCost) -> Batch | Pause:
        """The next step, or how long to wait for a better one."""
        decoding = [s for s in self.running.values() if not s.prefilling]
        prefilling = [s for s in self.running.values() if s.prefilling]
        step_s = cost.predict(sum(s.width for s in decoding))
        pauses = [s.drafter.pause(now, step_s, s.plan) for s in decoding]
        ready = [s for s, pause in zip(decoding, pauses, strict=True) if pause == 0.0]
        if prefilling:  # there is a forward in any case: nobody gains by sitting it out
            return self._batch(decoding, self._chunks(prefilling))
        if not decoding:
            return Pause(None)
        for session, pause in zip(decoding, pauses, strict=True):
            if pause > 0.0:
                session.drafter.hold(now)
        longest = max(pauses)
        if longest > 0.0 and not _worth_splitting(ready, decoding, longest, cost):
            return Pause(min(pause for pause in pauses if pause > 0.0))
        return self._batch(ready, [])

    def _batch(self, decoding: list[Session], prefilling: list[tuple[Session, int]]) -> Batch:
        return Batch(decoding, prefilling, self._recompute(self._budget - sum(size for _, size in prefilling)))

    def _recompute(self, left: int) -> list[tuple[Session, range]]:
        """Recompute within `left` tokens: few each beside sessions that lack nothing, as much as fits otherwise. In equal parts."""
        lacking = [(s, s.drafter.recompute) for s in self.running.values() if s.drafter.recompute]
        if len(lacking) < len(self.running):
            left = min(left, RECOMPUTE_TOKENS * len(lacking))
        lacking.sort(key=lambda pair: len(pair[1]))  # what a short one leaves of its part goes to those behind it
        chunks: list[tuple[Session, range]] = []
        for number, (session, positions) in enumerate(lacking):
            part = positions[: math.ceil(left / (len(lacking) - number))]
            if not part:
                break
            chunks.append((session, part))
            left -= len(part)
        return chunks

    def _chunks(self, prefilling: Sequence[Session]) -> list[tuple[Session, int]]:
        """Share the budget out: the oldest is sure of a part, and of the rest the shortest remainder is served first."""
        wanted = {session.id: len(session.tokens) - 1 - session.kv_length for session in prefilling}
        sizes = dict.fromkeys(wanted, 0)
        oldest = prefilling[0].id
        sizes[oldest] = min(wanted[oldest], math.ceil(self._budget / OLDEST_PART))
        left = self._budget - sizes[oldest]
        for number in sorted(wanted, key=wanted.__getitem__):
            more = min(left, wanted[number] - sizes[number])
            sizes[number] += more
            left -= more
        return [(session, sizes[session.id]) for session in prefilling if sizes[session.id]]

    def _tokens(self, session: Session) -> int:
        return session.prompt_length + session.stops.max_tokens + session.max_draft_tokens

    def _pages(self, session: Session) -> int:
        return self.pool.pages_for(self._tokens(session))


def _tree(session: Session, draft: Draft) -> TreeInput:
    slots = session.table.slots(0, session.kv_length + len(draft.tokens))
    row = Row.tree(draft.tokens, draft.parents, slots)
    counts = session.tally.tokens
    if counts is not None:
        counts.add(session.tokens[len(counts) :])
    return TreeInput(session.id, draft, row, session.request.sampling, session.drafter.recipe, counts)


def _chunk(session: Session, positions: range, *, recomputed: bool = False) -> ChunkInput:
    tokens = session.tokens[positions.start : positions.stop]
    row = Row.chunk(tokens, session.table.slots(0, positions.stop))
    return ChunkInput(session.id, positions.start, row, session.drafter.recipe, recomputed)


def _worth_splitting(ready: list[Session], everyone: list[Session], pause: float, cost: StepCost) -> bool:
    """True if stepping the ready ones now commits as fast as waiting to step everyone: a step must cost no more than its share."""
    if not ready:
        return False
    now_s = cost.predict(sum(s.width for s in ready))
    later_s = cost.predict(sum(s.width for s in everyone))
    return len(ready) / now_s >= len(everyone) / (pause + later_s)
