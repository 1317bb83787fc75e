"""The sessions of an engine: who waits, who runs, who is preempted, and where in the KV the tokens of a step lie."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection

from specsplit.errors import ContextExceeded, Exhausted
from specsplit.model.pages.tables import RowPages
from specsplit.speculation import Draft
from specsplit.values import AdapterLoad, ModelInfo, NoDraftsCause
from specsplit_verifier.policy.planner import Schedule
from specsplit_verifier.records.step import ChunkInput, PromptPart, StepInput, TreeInput
from specsplit_verifier.schedule.kv_cache_manager import KVCacheManager
from specsplit_verifier.sessions.session import Session


class Scheduler:
    """Sessions in order of arrival: waiting for room, then running."""

    def __init__(self, info: ModelInfo, kv: KVCacheManager, *, max_sessions: int) -> None:
        self.info = info
        """The target as it is now."""
        self.kv = kv
        self._max_sessions = max_sessions
        self.waiting: deque[Session] = deque()
        self.running: dict[int, Session] = {}
        """In order of admission."""
        self.held = False
        """True while sessions that have not begun wait, whatever room there is."""

    def max_tokens_of(self, prompt_tokens: int, max_tokens: int | None, num_draft_tokens: int) -> int:
        """Tokens a session may generate; without `max_tokens` as many as context and KV pool hold.

        Raises ContextExceeded, with the numbers, if prompt and output exceed the context.
        """
        left = self.info.max_context - prompt_tokens
        if left < 1:
            raise ContextExceeded(
                "token_ids",
                f"has {prompt_tokens} tokens, which leaves no room in the context of {self.info.max_context}",
            )
        if max_tokens is not None and max_tokens > left:
            raise ContextExceeded(
                "max_tokens",
                f"is {max_tokens}, which with {prompt_tokens} prompt tokens exceeds the context of "
                f"{self.info.max_context}; at most {left} fit",
            )
        if max_tokens is not None:
            return max_tokens
        return max(1, min(left, self.kv.most_tokens(num_draft_tokens) - prompt_tokens))

    def submit(self, session: Session) -> None:
        """Queue a session. Raises, with the numbers, ContextExceeded if it can never fit and Exhausted if too many wait already."""
        pool, num_draft_tokens = self.kv.pool, session.plan.num_draft_tokens
        pages = self.kv.most_pages(session.prompt_length + session.stops.max_tokens, num_draft_tokens)
        if pages > pool.total_pages:
            raise ContextExceeded(
                "token_ids" if session.request.stopping.max_tokens is None else "max_tokens",
                f"asks for too much: the session needs {pages} KV pages of {pool.page_size} tokens "
                f"({session.prompt_length} prompt, {session.stops.max_tokens} to generate, {num_draft_tokens} drafted); "
                f"this verifier has {pool.total_pages} in all, so it can never fit; send a shorter prompt, or ask for less",
            )
        if len(self.waiting) >= self._max_sessions:
            raise Exhausted(
                f"{len(self.waiting)} sessions wait already for a place in a step of this verifier, as many as its max_sessions "
                f"({self._max_sessions}) lets wait beside the {len(self.running)} that run; try again in a second, "
                "add a verifier, or raise max_sessions",
                retry_after_s=1.0,
            )
        self.waiting.append(session)

    def admit(self) -> list[Session]:
        """Move sessions that fit now from waiting to running, in order of arrival.

        A session whose beginning is just being read for another waits for that, and others may overtake it.
        """
        admitted: list[Session] = []
        if not self.waiting or len(self.running) == self._max_sessions:
            return admitted
        self.kv.prefixes.share(self.running.values())
        prefilling = [session for session in self.running.values() if session.prefilling]
        for session in list(self.waiting):
            if self.held and not session.begun:
                break  # those that have begun stand before all others
            if self.kv.prefixes.awaits(session, prefilling):
                continue
            if len(self.running) == self._max_sessions or not self.kv.admit(session, len(self.running)):
                break  # a large session must not starve
            self.waiting.remove(session)
            self.running[session.id] = session
            admitted.append(session)
            if session.prefilling:
                prefilling.append(session)
        return admitted

    def preempt(self) -> Session:
        """The session that was admitted last gives its pages back and waits, before all others, to be computed again."""
        _, session = self.running.popitem()
        self.kv.preempt(session)
        self.waiting.appendleft(session)
        return session

    @property
    def begun(self) -> int:
        """Sessions that have begun: they run, or were preempted."""
        return len(self.running) + sum(session.begun for session in self.waiting)

    @property
    def adapters(self) -> tuple[AdapterLoad, ...]:
        """What sessions are decoded with, by name; a moment old when read from another thread."""
        if not self.info.adapters:
            return ()
        sessions = (*self.running.values(), *self.waiting)
        used = Counter(session.request.adapter for session in sessions if session.request.adapter)
        return tuple(AdapterLoad(name, used[name]) for name in sorted(used))

    def find(self, session_id: int) -> Session | None:
        """Look up a waiting or running session."""
        return self.running.get(session_id) or next((s for s in self.waiting if s.id == session_id), None)

    def remove(self, session: Session, *, sound: bool = True) -> None:
        """Forget a session and free its pages. Unless its KV is `sound`, nobody shares it from now on."""
        if self.running.pop(session.id, None) is None:
            self.waiting.remove(session)
        self.kv.free(session, sound=sound)

    def allocate_pages(self, schedule: Schedule) -> bool:
        """Take the pages that a step needs; False if there are too few even for the roots, so that a session has to be preempted.

        Sessions that prefill may get fewer than their chunks need, where layers see windows: then `lay_out` takes less of their texts.
        """
        stepping = [session for session, _ in schedule.decoding]
        return self.kv.extend(stepping, self.running.values(), schedule.prefilling)

    def lay_out(self, schedule: Schedule, now: float) -> StepInput:
        """Take the drafts of those that step, and give every token its slot."""
        trees = [
            _tree(session, session.take(limits.within(session.lookahead_slots)), schedule.crowded_out)
            for session, limits in schedule.decoding
        ]
        wanted = {session.id: positions.start for session, positions in schedule.recomputing}
        chunks = [
            _chunk(session, positions, pages, lead=wanted[session.id] - positions.start, recomputed=True)
            for session, positions, pages in self.kv.scratch(schedule.recomputing)
        ]
        for session, size in schedule.prefilling:
            positions = range(session.kv_length, min(session.kv_length + size, len(session.table)))
            told = session.to_tell(positions) if session.telling else None
            chunks.append(_chunk(session, positions, session.table.upto(positions.stop), told=told))
        return StepInput(trees, chunks, now)


def _tree(session: Session, draft: Draft, crowded_out: Collection[int]) -> TreeInput:
    request, counts = session.request, session.counters.tokens
    if counts is not None:
        counts.add(session.tokens[len(counts) :])
    return TreeInput.tree(
        draft.tokens,
        draft.parents,
        session.table.upto(len(session.tokens) - 1 + len(draft.tokens)),
        session=session.id,
        adapter=session.adapter.number,
        draft=draft,
        sampling=request.sampling,
        recipe=session.drafter.recipe,
        logprobs=request.logprobs,
        counts=counts,
        floor=session.floor,
        grammar=session.grammar,
        undrafted=_cause(session, crowded_out) if len(draft.tokens) == 1 else None,
    )


def _cause(session: Session, crowded_out: Collection[int]) -> NoDraftsCause:
    """Why a session brings its root alone."""
    return NoDraftsCause.MEMORY if session.id in crowded_out else session.undrafted


def _chunk(
    session: Session,
    positions: range,
    pages: RowPages,
    *,
    lead: int = 0,
    recomputed: bool = False,
    told: PromptPart | None = None,
) -> ChunkInput:
    """Each token that is told is told by the logits of the one before it."""
    behind = range(0) if told is None else range(told.first - 1 - positions.start, told.end - 1 - positions.start)
    return ChunkInput.chunk(
        session.tokens[positions.start : positions.stop],
        pages,
        behind,
        stretch=True,
        session=session.id,
        adapter=session.adapter.number,
        first=positions.start + lead,
        recipe=session.drafter.recipe,
        lead=lead,
        recomputed=recomputed,
        told=told,
    )
