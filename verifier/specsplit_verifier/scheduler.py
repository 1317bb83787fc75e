"""Which sessions the next step takes: who is admitted and preempted, chunked prefill, what is recomputed, and who is worth waiting for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from specsplit.errors import Exhausted, InvalidRequest
from specsplit.model.batch import Row
from specsplit.model.pages import Slots
from specsplit.speculation import Draft
from specsplit.values import ModelInfo
from specsplit_verifier.cost import StepCost
from specsplit_verifier.kv_cache_manager import KVCacheManager
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

    def step(self, now: float, kv: KVCacheManager) -> StepInput:
        """Take the drafts and lay out the rows."""
        trees = [_tree(session, session.take(session.room)) for session in self.decoding]
        chunks = [_chunk(*placed, recomputed=True) for placed in kv.scratch(self.recomputing)]
        for session, size in self.prefilling:
            positions = range(session.kv_length, session.kv_length + size)
            chunks.append(_chunk(session, positions, session.table.slots(0, positions.stop)))
        return StepInput(trees, chunks, now)


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing to step now; look again after so many seconds, or at the next event (None: only then)."""

    seconds: float | None


class Scheduler:
    """Sessions in order of arrival: waiting for room, then running."""

    def __init__(self, info: ModelInfo, kv: KVCacheManager, *, max_sessions: int, step_token_budget: int) -> None:
        self._info = info
        self.kv = kv
        self._max_sessions = max_sessions
        self._budget = step_token_budget
        self.waiting: deque[Session] = deque()
        self.running: dict[int, Session] = {}
        """In order of admission."""

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
        return max(1, min(left, self.kv.pool.num_slots - prompt_tokens - num_draft_tokens))

    def submit(self, session: Session) -> None:
        """Queue a session. Raises, with the numbers, InvalidRequest if it can never fit and Exhausted if too many wait already."""
        pool, num_draft_tokens = self.kv.pool, session.plan.num_draft_tokens
        pages = pool.pages_for(session.prompt_length + session.stops.max_tokens + num_draft_tokens)
        if pages > pool.total_pages:
            raise InvalidRequest(
                "token_ids" if session.request.stopping.max_tokens is None else "max_tokens",
                f"asks for too much: the session needs {pages} KV pages of {pool.page_size} tokens "
                f"({session.prompt_length} prompt, {session.stops.max_tokens} to generate, {num_draft_tokens} drafted); "
                f"this verifier has {pool.total_pages} in all, so it can never fit; send a shorter prompt, or ask for less",
            )
        if len(self.waiting) >= self._max_sessions:
            raise Exhausted(
                f"{len(self.running)} sessions are running and {len(self.waiting)} wait already", retry_after_s=1.0
            )
        self.waiting.append(session)

    def admit(self) -> list[Session]:
        """Move sessions that fit now from waiting to running, in order of arrival.

        A session whose beginning is just being read for another waits for that, and others may overtake it.
        """
        admitted: list[Session] = []
        if not self.waiting or len(self.running) == self._max_sessions:
            return admitted
        self.kv.share(self.running.values())
        for session in list(self.waiting):
            if self.kv.awaits(session, self.running.values()):
                continue
            if len(self.running) == self._max_sessions or not self.kv.admit(session, len(self.running)):
                break  # a large session must not starve
            self.waiting.remove(session)
            self.running[session.id] = session
            admitted.append(session)
        return admitted

    def preempt(self) -> Session:
        """The session that was admitted last gives its pages back and waits, before all others, to be computed again."""
        _, session = self.running.popitem()
        self.kv.preempt(session)
        self.waiting.appendleft(session)
        return session

    def find(self, session_id: int) -> Session | None:
        """A waiting or running session."""
        return self.running.get(session_id) or next((s for s in self.waiting if s.id == session_id), None)

    def remove(self, session: Session, *, sound: bool = True) -> None:
        """Forget a session and free its pages. Unless its KV is `sound`, nobody shares it from now on."""
        if self.running.pop(session.id, None) is None:
            self.waiting.remove(session)
        self.kv.free(session, sound=sound)

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


def _tree(session: Session, draft: Draft) -> TreeInput:
    slots = session.table.slots(0, session.kv_length + len(draft.tokens))
    row = Row.tree(draft.tokens, draft.parents, slots)
    return TreeInput(session.id, draft, row, session.request.sampling, session.drafter.recipe)


def _chunk(session: Session, positions: range, slots: Slots, *, recomputed: bool = False) -> ChunkInput:
    row = Row.chunk(session.tokens[positions.start : positions.stop], slots)
    return ChunkInput(session.id, positions.start, row, session.drafter.recipe, recomputed)


def _worth_splitting(ready: list[Session], everyone: list[Session], pause: float, cost: StepCost) -> bool:
    """True if stepping the ready ones now commits as fast as waiting to step everyone: a step must cost no more than its share."""
    if not ready:
        return False
    now_s = cost.predict(sum(s.width for s in ready))
    later_s = cost.predict(sum(s.width for s in everyone))
    return len(ready) / now_s >= len(everyone) / (pause + later_s)
