"""Who has which pages of KV: a session takes them as its text grows. Belongs to the engine thread.

Between steps a session needs pages for its committed tokens alone. What lies behind them is room for drafts, which is given where pages
are left and taken back before anybody is preempted for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specsplit.model.pages import PagePool, PageTable
from specsplit_verifier.session import Session


@dataclass(slots=True)
class KVCounters:
    """What happened to sessions for want of pages, since this was last taken."""

    preemptions: int = 0

    def take(self) -> KVCounters:
        """The counts so far; they begin anew."""
        taken = replace(self)
        self.preemptions = 0
        return taken


class KVCacheManager:
    """Gives pages to sessions, and takes them back."""

    def __init__(self, pool: PagePool) -> None:
        self.pool: Final = pool
        self.counters: Final = KVCounters()

    @property
    def free_pages(self) -> int:
        """Pages that a session can have."""
        return self.pool.free_pages

    def table(self) -> PageTable:
        """For a new session; without pages."""
        return PageTable(self.pool)

    def admit(self, session: Session, running: int) -> bool:
        """Take the pages of a session's text, if these and room for its first tree are there, and a page for each of `running` beside.

        Those may need that page in the very next step, and would preempt the session for it.
        """
        length = len(session.tokens)
        wanted = min(self.pool.pages_for(length + session.plan.num_draft_tokens) + running, self.pool.total_pages)
        if wanted > self.free_pages:
            return False
        return self._reserve(session, length)

    def extend(self, stepping: Sequence[Session], running: Iterable[Session]) -> bool:
        """Take the pages that sessions lack for a step: those of their roots, or False; then as much room for drafts as there is."""
        lacking = [session for session in stepping if session.room < session.width]
        if not self._reserve_roots(lacking):
            for session in running:
                session.table.shrink(len(session.tokens))
            if not self._reserve_roots(lacking):
                return False
        for session in lacking:
            self._reserve_drafts(session)
        return True

    def preempt(self, session: Session) -> None:
        """Take all pages of a session back that goes on later: then all that it has committed is computed again."""
        self.free(session)
        session.kv_length = 0
        self.counters.preemptions += 1

    def free(self, session: Session) -> None:
        """Take all pages of a session back."""
        session.table.release()

    def _reserve_roots(self, sessions: Iterable[Session]) -> bool:
        return all(self._reserve(session, len(session.tokens)) for session in sessions)

    def _reserve_drafts(self, session: Session) -> None:
        held = len(session.table)
        most = held + self.free_pages * self.pool.page_size
        self._reserve(session, min(session.kv_length + session.width, most))

    def _reserve(self, session: Session, length: int) -> bool:
        """Make sure that a session has slots for so many tokens; False if there are no pages for them."""
        if self.pool.pages_for(length - len(session.table)) > self.free_pages:
            return False
        session.table.reserve(length)
        return True
