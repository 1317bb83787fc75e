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
from dataclasses import dataclass, field
from typing import Final

from specsplit.features import Features
from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.pages.states import RecurrentStates
from specsplit.model.pages.tables import RowPages
from specsplit.prefix import BLOCK, FIRST_PAGES
from specsplit.records import KVCounters
from specsplit.values import pages_held
from specsplit_verifier.records.feed import Feed, Recipe, Rows
from specsplit_verifier.schedule.block_log import BlockLog
from specsplit_verifier.schedule.prefix_cache import PrefixCache
from specsplit_verifier.schedule.replays import Replays
from specsplit_verifier.schedule.window_pages import SessionWindows
from specsplit_verifier.sessions.session import Session

EVICTED_PART = 32  # of all pages one in so many is evicted at once, at least
_ENDLESS: Final = 1 << 40  # tokens


@dataclass(slots=True)
class Prefix:
    """What can be shared of one session's text."""

    digests: list[bytes] = field(default_factory=list[bytes])
    """Digests of its full pages, from the front; as many as were asked for."""
    shared: int = 0
    """How many of the full pages, from the front, the prefix cache was told of, by this session or another."""
    known: int = 0
    """Full pages of a waiting session, from the front, that need not be computed, as of the last look: others have what is seen of them."""
    losses: int = -1
    """How often the cache had lost pages by then, or, where layers see windows, how often it had lost or got some."""
    idle: tuple[int, int, int] = (0, -1, 0)
    """How many of the first pages are idle: (pages looked at, changes of idle pages by then, idle ones)."""


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
        self._sharing: Final = prefix_cache
        self._states: Final = states
        self._cache: Final = PrefixCache(pool, feature_bytes=feature_bytes)
        self._prefixes: dict[int, Prefix] = {}
        """Prefixes by session id."""
        self._scratch: Final = PageTable(pool)
        self._replays: Final = Replays(pool, self._reserve_most)
        self._windows: Final = None if pool.windows is None else SessionWindows(pool, pool.windows)

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
        return self.pool.free_pages + self._cache.idle_pages

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Marks of the first pages of texts that are here, the latest used last. Any thread may ask."""
        return self._cache.recent.marks

    @property
    def blocks(self) -> BlockLog:
        """Which blocks of tokens can be found again."""
        return self._cache.blocks

    def flush(self) -> tuple[int, int]:
        """Free the pages that are only kept for whoever may share them -> (pages freed, shared pages that sessions have)."""
        return self._cache.flush()

    def table(self) -> PageTable:
        """For a new session; without pages."""
        return PageTable(self.pool)

    def share(self, sessions: Iterable[Session]) -> None:
        """Let others find the full pages that were computed for these sessions."""
        for session in sessions:
            full = self._full(session.kv_length)
            prefix = self._prefix(session, full)
            if prefix.shared < full:
                first, size = prefix.shared, self.pool.page_size
                new = self._cache.put(prefix.digests[first:full], session.table.pages(first, full))
                if new:
                    tokens = session.tokens[first * size : full * size]
                    self._cache.blocks.stored(prefix.digests[:full], first, new, tokens, session.request.adapter)
                self._keep_features(session.drafter.feed, prefix.digests, range(prefix.shared, full))
                if prefix.shared < FIRST_PAGES:
                    self._cache.used(prefix.digests[:full])
                prefix.shared = full

    def recomputed(self, session: Session, recipe: Recipe, features: Features) -> None:
        """Features of a session were computed: those of whole shared pages are kept for whoever shares them next."""
        size, prefix = self.pool.page_size, self._prefixes.get(session.id)
        if prefix is not None and features.end <= prefix.shared * size:
            made = Rows(recipe.layout, features.first)
            made.append(features)
            for page in range(self.pool.pages_for(features.first), features.end // size):
                self._cache.keep(prefix.digests[page], recipe, made.cut(page * size, (page + 1) * size))

    def features(self, session: int, recipe: Recipe, end: int) -> list[Features]:
        """What is kept of the features of a session's shared pages before position `end`, without a gap."""
        prefix = self._prefixes.get(session)
        if prefix is None or end != prefix.shared * self.pool.page_size:
            return []
        return self._cache.features.last(prefix.digests[: prefix.shared], recipe)

    def awaits(self, session: Session, prefilling: Sequence[Session]) -> bool:
        """True if the first page that a session lacks is just being computed for another, which is served no later than itself.

        `prefilling`: all running sessions that lack KV before their roots, in order of admission.
        """
        if session.telling:  # it has no use for that
            return False
        page = self._known(session)
        if page == self._full(len(session.tokens) - 1):
            return False
        sooner = (o for o in prefilling if o is prefilling[0] or len(o.tokens) - o.kv_length <= len(session.tokens))
        longer = (other for other in sooner if self._full(len(other.tokens) - 1) > page)
        return any(self._alike(session, other, page) for other in longer)

    def admit(self, session: Session, running: int) -> bool:
        """Take the pages of a session's text, if these and room for its first tree are there, and a page for each of `running` beside.

        Those may need that page in the very next step, and would preempt the session for it. Pages of an equal beginning are shared.
        """
        length, pages = len(session.tokens), self._behind_states(session, self._known(session))
        prefix, first = self._prefix(session, pages), self._first_seen(pages)
        most = min(self.most_pages(length, session.plan.num_draft_tokens), self.pool.total_pages)
        lacking = min(most + running, self.pool.total_pages) - (pages - first)
        if lacking > self.free_pages or lacking > self.free_pages - self._idle(prefix, pages):
            return False
        if self._windows is not None and not self._windows.has_room(length, session.plan.num_draft_tokens):
            return False
        known = prefix.digests[:pages]
        taken = self._cache.take(known[first:])
        session.table.adopt(taken, behind=first)
        if self._states is not None and pages:
            self._states.resume(session.table.number, int(taken[-1]), pages * self.pool.page_size)
        prefix.shared = len(known)
        session.kv_length = len(known) * self.pool.page_size
        if self._windows is not None:
            self._windows.see(session, 0)  # what it goes on from; for the rest there is room
        self._cache.used(known)
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
        self._cache.features.make_bytes()
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
            self.share([session])
        first = session.table.first // self.pool.page_size
        self._drop_replays(session)
        session.table.release()
        prefix = self._prefixes.pop(session.id, Prefix())
        if sound:
            self._cache.rest(prefix.digests[first:])
        else:
            self._cache.forget(prefix.digests)

    def _leave(self, session: Session) -> None:
        """Give back the pages that no token of a session to come sees. One that prefills takes as many behind its last."""
        table, size = session.table, self.pool.page_size
        first, before = self.pool.first_seen(session.kv_length), table.first
        if first - before < size:
            return
        self.share([session])  # first: what it gives back is found again
        table.release_before(first)
        self._cache.rest(self._prefix(session, 0).digests[before // size : table.first // size])
        if session.prefilling:
            self._reserve_most(table, min(len(table) + table.first - before, len(session.tokens)))

    def _first_seen(self, pages: int) -> int:
        """Of so many first pages of a text, the first that a token behind them sees; the last of them always counts as seen."""
        return max(0, min(pages - 1, self.pool.first_seen(pages * self.pool.page_size) // self.pool.page_size))

    def _keep_features(self, feed: Feed | None, digests: Sequence[bytes], pages: range) -> None:
        if feed is not None:
            size = self.pool.page_size
            for page in reversed(pages):  # the end of a text goes before its beginning
                features = feed.kept(page * size, (page + 1) * size)
                if features is not None:
                    self._cache.keep(digests[page], feed.recipe, features)

    def _full(self, tokens: int) -> int:
        """Pages that so many tokens fill, of those that may be shared."""
        return tokens // self.pool.page_size if self._sharing else 0

    def _prefix(self, session: Session, pages: int) -> Prefix:
        """What is known of a session's first pages, with at least so many digests: whole blocks, as far as the text goes."""
        prefix = self._prefixes.setdefault(session.id, Prefix())
        if len(prefix.digests) < pages:
            blocks = -(-pages // BLOCK) * BLOCK
            count = min(blocks, self._full(len(session.tokens)))
            self._cache.extend(prefix.digests, session.tokens, count, session.adapter.salt)
        return prefix

    def _known(self, session: Session) -> int:
        """How many pages of a session's text, from the front, it can go on behind: those that the cache has. What was known last is counted
        on from there. Of what is cached there are no logits, so a session whose prompt is to be told begins at the first token.
        """
        if session.telling:
            return 0
        full = self._full(len(session.tokens) - 1)
        if self.pool.window is not None:
            return self._known_within(session, full)
        prefix = self._prefix(session, min(full, 1))
        if prefix.losses != self._cache.losses:
            prefix.known, prefix.losses = 0, self._cache.losses
        while True:
            stop = min(full, len(prefix.digests))
            prefix.known = self._cache.first_unknown(prefix.digests, prefix.known, stop)
            if prefix.known < stop or stop == full:
                break
            self._prefix(session, stop + 1)
        if self._windows is None:
            return prefix.known
        return self._windows.begin_at(prefix.known, lambda number: self._cache.page(prefix.digests[number]))

    def _known_within(self, session: Session, full: int) -> int:
        """The most pages of a text, from the front, of which the cache has all that a token behind them sees. They are looked at anew
        when the cache has got or lost some.
        """
        prefix = self._prefix(session, full)
        changes = self._cache.losses + self._cache.gains
        if prefix.losses != changes:
            prefix.losses = changes
            prefix.known = self._longest(self._cache.are_known(prefix.digests[:full]))
        return prefix.known

    def _longest(self, known: bytes) -> int:
        """The most pages of a text, from the front, of which all are known that a token behind them sees. `known`: 1 for each that is."""
        stop = len(known)
        while (last := known.rfind(1, 0, stop)) >= 0:
            gap = known.rfind(0, self._first_seen(last + 1), last)
            if gap < 0:
                break
            stop = gap  # whoever begins behind it sees it too
        return last + 1

    def _behind_states(self, session: Session, pages: int) -> int:
        """How many of the known pages of a text, from the front, end where it can go on: for a recurrent model, behind known states."""
        if self._states is None:
            return pages
        digests = self._prefix(session, pages).digests
        while pages and self._cache.page(digests[pages - 1]) not in self._states.snapshots:
            pages -= 1
        return pages

    def _idle(self, prefix: Prefix, taken: int) -> int:
        """How many of the pages are idle that are taken of a text whose first pages are known; most often these are all known ones."""
        if taken < prefix.known:
            return self._cache.idle(prefix.digests[self._first_seen(taken) : taken])
        pages, changes, _ = prefix.idle
        if (pages, changes) != (prefix.known, self._cache.idle_changes):
            count = self._cache.idle(prefix.digests[self._first_seen(prefix.known) : prefix.known])
            prefix.idle = prefix.known, self._cache.idle_changes, count
        return prefix.idle[2]

    def _alike(self, one: Session, other: Session, page: int) -> bool:
        """True if two texts are the same up to the end of a page, and read with one adapter. Only texts that have the same tokens there
        are looked at in full.
        """
        tokens = slice(page * self.pool.page_size, (page + 1) * self.pool.page_size)
        if one.tokens[tokens] != other.tokens[tokens]:
            return False
        return self._prefix(one, page + 1).digests[page] == self._prefix(other, page + 1).digests[page]

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
            self._cache.evict(max(wanted - self.pool.free_pages, self.pool.total_pages // EVICTED_PART))
        table.reserve(length)
        return True
