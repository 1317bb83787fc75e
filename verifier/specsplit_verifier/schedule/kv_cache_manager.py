"""Who has which pages of KV: sessions take them as their texts grow, and share those of equal beginnings. Belongs to the engine thread.

Between steps a session needs pages for its committed tokens alone. What lies behind them is room for drafts, which is given where pages
are left and taken back before anybody is preempted for it. A page that others can read is never written again: a session writes behind
what is computed, and what it recomputes goes to scratch pages.

Where every layer sees a window or a chunk, a session holds the pages that its tokens to come see. The others it gives back after each
step; the prefix cache has them until they are needed for others. Where only some layers do, the others keep all pages, and
`specsplit_verifier.schedule.window_pages` says which have a place in those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.pages.states import RecurrentStates
from specsplit.model.pages.tables import RowPages
from specsplit.records import KVCounters
from specsplit.values import pages_held
from specsplit_verifier.schedule.prefix_cache import PrefixCache
from specsplit_verifier.schedule.prefixes import Prefixes
from specsplit_verifier.schedule.replays import Replays
from specsplit_verifier.schedule.window_pages import SessionWindows
from specsplit_verifier.sessions.session import Session

EVICTED_PART = 32  # of all pages one in so many is evicted at once, at least
_ENDLESS: Final = 1 << 40  # tokens


class KVCacheManager:
    """Gives pages to sessions, and takes them back."""

    def __init__(
        self,
        pool: PagePool,
        *,
        prefix_cache: bool = True,
        feature_bytes: int = 0,
        states: RecurrentStates | None = None,
    ) -> None:
        """Without `prefix_cache` no session finds what another has computed. `feature_bytes`: for features of shared pages, at most.

        `states`: those that the model keeps, if it is recurrent. A text then goes on where there are states of it, and where something in
        the middle of it is wanted again, all before that is computed again.
        """
        self.pool: Final = pool
        self.counters: Final = KVCounters()
        self.cache: Final = PrefixCache(pool, feature_bytes=feature_bytes)
        self._states: Final = states
        self._scratch: Final = PageTable(pool)
        self._replays: Final = Replays(pool, self._reserve_most)
        self._windows: Final = None if pool.windows is None else SessionWindows(pool, pool.windows)
        self.prefixes: Final = Prefixes(pool, self.cache, sharing=prefix_cache, states=states, windows=self._windows)

    def most_pages(self, num_tokens: int, in_step: int) -> int:
        """Pages that a session holds at most while its text grows to so many tokens, with up to `in_step` of them in a step."""
        return pages_held(num_tokens + in_step, in_step, self.pool.page_size, self.pool.window or 0)

    def most_tokens(self, in_step: int) -> int:
        """Tokens to which the text of a session can grow that has all pages."""
        endless = self.most_pages(_ENDLESS, in_step) <= self.pool.total_pages
        return _ENDLESS if endless else self.pool.num_slots - in_step

    @property
    def roots_join(self) -> bool:
        """True if a session may decode in the very step that reads the last of its prompt.

        Not where layers see windows, since a step may then read less of a text than was planned, nor where layers are recurrent, since
        the rows of a step go on from states that are there before it.
        """
        return self.pool.window is None and self.pool.windows is None and self._states is None

    @property
    def free_pages(self) -> int:
        """Pages that a session can have, those that are only kept for whoever may share them included."""
        return self.pool.free_pages + self.cache.idle_pages

    def table(self) -> PageTable:
        """For a new session; without pages."""
        return PageTable(self.pool)

    def admit(self, session: Session, running: int) -> bool:
        """Take the pages of a session's text, if these and room for its first tree are there, and a page for each of `running` beside.

        Those may need that page in the very next step, and would preempt the session for it. Pages of an equal beginning are shared.
        """
        length, pages = len(session.tokens), self.prefixes.found(session)
        first = self.prefixes.first_seen(pages)
        most = min(self.most_pages(length, session.plan.num_draft_tokens), self.pool.total_pages)
        lacking = min(most + running, self.pool.total_pages) - (pages - first)
        if lacking > self.free_pages or lacking > self.free_pages - self.prefixes.idle(session, pages):
            return False
        if self._windows is not None and not self._windows.has_room(length, session.plan.num_draft_tokens):
            return False
        taken = self.prefixes.take(session, pages)
        session.table.adopt(taken, behind=first)
        if self._states is not None and pages:
            self._states.resume(session.table.number, int(taken[-1]), pages * self.pool.page_size)
        session.kv_length = pages * self.pool.page_size
        if self._windows is not None:
            self._windows.see(session, 0)  # what it goes on from; for the rest there is room
        if not session.begun:
            cached = session.counters.cached = min(session.kv_length, session.prompt_length)
            self.counters.cached_tokens += cached
        return self._reserve(session.table, min(length, (first + most) * self.pool.page_size))

    def extend(
        self,
        stepping: Sequence[Session],
        running: Iterable[Session],
        prefilling: Sequence[tuple[Session, int]] = (),
    ) -> bool:
        """Take the pages that sessions lack for a step: those of their roots, or False; then as much room for drafts as there is.

        `prefilling`: sessions, and how many tokens of their texts the step reads. They have their pages since they were admitted, but
        where layers see windows: then False too if there is none for a token of each, and as much room for more as there is. A session
        that reads all before its root may be `stepping` too if `roots_join`.
        """
        lacking = [session for session in stepping if session.lookahead_slots < session.width]
        reading = [(session, count) for session, count in prefilling if len(session.table) < session.kv_length + count]
        if not self._reserve_first(lacking, reading):
            self._replays.drop_all()
            for session in running:
                session.table.shrink(len(session.tokens))
            if not self._reserve_first(lacking, reading):
                return False
            lacking = list(stepping)
        for session, count in reading:
            self._reserve_most(session.table, session.kv_length + count)
        for session in lacking:
            self._reserve_most(session.table, len(session.tokens) - 1 + session.width)
        return self._windows is None or self._windows.step(stepping, prefilling)

    def scratch(self, chunks: Iterable[tuple[Session, range]]) -> list[tuple[Session, range, RowPages]]:
        """Where positions of sessions are recomputed in this step: pages from position 0 to the chunk's end, its own from scratch.

        A page is one or the other, so a chunk begins where its first page does, and where its text does for a recurrent model. It is
        shorter, or not there, where pages are short. `end_step` takes the scratch pages back. Where the session has given back what a
        chunk reads, its text is computed again from the first token on, some of it in every step: the chunk is the next of that.
        """
        placed: list[tuple[Session, range, RowPages]] = []
        size, taken = self.pool.page_size, 0
        for session, wanted in chunks:
            positions = wanted if self._windows is None else self._windows.positions(session, wanted)
            start = 0 if self._states is not None else positions.start // size * size
            if session.table.first > self.pool.first_seen(start):
                replayed = self._replays.place(session.id, positions)
                placed += [] if replayed is None else [(session, *replayed)]
                continue
            self._reserve_scratch(taken * size + positions.stop - start)
            stop = min(positions.stop, start + len(self._scratch) - taken * size)
            if stop > positions.start:
                count = self.pool.pages_for(stop - start)
                own = self._scratch.pages(taken, taken + count)
                placed.append((session, range(start, stop), session.table.upto(stop, own)))
                taken += count
                if self._windows is not None:
                    self._windows.placed(session, range(start, stop), own)
        return placed

    def end_step(self, running: Iterable[Session] = ()) -> None:
        """A step is over: what none of these sessions sees any more is given back."""
        if self._windows is not None:
            self._windows.end_step()
        self._scratch.release()
        self.cache.features.make_bytes()
        if self.pool.window is None and self._windows is None:
            return
        self._replays.end_step()
        for session in running:
            if not session.drafter.lacks_features:
                self._drop_replays(session)
            if self.pool.window is not None:
                self._leave(session)

    def preempt(self, session: Session) -> None:
        """Take all pages of a session back that goes on later: then what is not found again of its text is computed again."""
        self.free(session)
        session.kv_length = 0
        self.counters.preemptions += 1

    def free(self, session: Session, *, sound: bool = True) -> None:
        """Take all pages of a session back. If its KV is not `sound`, nobody is to find what it has computed or read."""
        if sound:
            self.prefixes.share([session])
        first = session.table.first // self.pool.page_size
        self._drop_replays(session)
        session.table.release()
        self.prefixes.end(session, first, sound=sound)

    def _leave(self, session: Session) -> None:
        """Give back the pages that no token of a session to come sees. One that prefills takes as many behind its last."""
        table, size = session.table, self.pool.page_size
        first, before = self.pool.first_seen(session.kv_length), table.first
        if first - before < size:
            return
        self.prefixes.share([session])  # first: what it gives back is found again
        table.release_before(first)
        self.prefixes.rest(session, range(before // size, table.first // size))
        if session.prefilling:
            self._reserve_most(table, min(len(table) + table.first - before, len(session.tokens)))

    def _reserve_scratch(self, length: int) -> None:
        """Make room for so many tokens in scratch pages, or for as many as there are pages for, and window pages."""
        windows, scratch = self.pool.windows, self._scratch
        if windows is not None:
            length = min(length, len(scratch) + windows.free_pages * self.pool.page_size)
        self._reserve_most(scratch, length)
        scratch.see(0, len(scratch))

    def _drop_replays(self, session: Session) -> None:
        self._replays.drop(session.id)
        if self._windows is not None:
            self._windows.drop(session.id)

    def _reserve_first(self, stepping: Iterable[Session], prefilling: Iterable[tuple[Session, int]]) -> bool:
        """Make room for the roots of sessions, and for a token of those that prefill; False if there is none."""
        roots = all(self._reserve(session.table, len(session.tokens)) for session in stepping)
        return roots and all(self._reserve(session.table, session.kv_length + 1) for session, _ in prefilling)

    def _reserve_most(self, table: PageTable, length: int) -> None:
        """Make room for so many tokens in a table, or for as many as there are pages for."""
        self._reserve(table, min(length, len(table) + self.free_pages * self.pool.page_size))

    def _reserve(self, table: PageTable, length: int) -> bool:
        """Make sure that a table has slots for so many tokens; False if there are no pages for them."""
        wanted = self.pool.pages_for(length - len(table))
        if wanted > self.free_pages:
            return False
        if wanted > self.pool.free_pages:
            # Several at once: they are handed out in order, so that a text's pages lie side by side.
            self.cache.evict(max(wanted - self.pool.free_pages, self.pool.total_pages // EVICTED_PART))
        table.reserve(length)
        return True
