"""What sessions find of their texts in the prefix cache, and leave there. Belongs to the engine thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from specsplit.features import Features
from specsplit.model.pages.pool import PagePool
from specsplit.model.pages.states import RecurrentStates
from specsplit.model.pages.tables import Slots
from specsplit.prefix import BLOCK, FIRST_PAGES
from specsplit_verifier.records.feed import Feed, Recipe, Rows
from specsplit_verifier.schedule.prefix_cache import PrefixCache
from specsplit_verifier.schedule.window_pages import SessionWindows
from specsplit_verifier.sessions.session import Session


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


class Prefixes:
    """The beginnings of the texts of all sessions, by what the prefix cache has of them."""

    def __init__(
        self,
        pool: PagePool,
        cache: PrefixCache,
        *,
        sharing: bool = True,
        states: RecurrentStates | None = None,
        windows: SessionWindows | None = None,
    ) -> None:
        """Without `sharing` nothing is found and nothing is left. `states` and `windows`: what else a text needs where it goes on."""
        self._pool: Final = pool
        self._cache: Final = cache
        self._sharing: Final = sharing
        self._states: Final = states
        self._windows: Final = windows
        self._by_session: dict[int, Prefix] = {}

    def share(self, sessions: Iterable[Session]) -> None:
        """Let others find the full pages that were computed for these sessions."""
        for session in sessions:
            full = self._full(session.kv_length)
            prefix = self._prefix(session, full)
            if prefix.shared < full:
                first, size = prefix.shared, self._pool.page_size
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
        size, prefix = self._pool.page_size, self._by_session.get(session.id)
        if prefix is not None and features.end <= prefix.shared * size:
            made = Rows(recipe.layout, features.first)
            made.append(features)
            for page in range(self._pool.pages_for(features.first), features.end // size):
                self._cache.keep(prefix.digests[page], recipe, made.cut(page * size, (page + 1) * size))

    def features(self, session: int, recipe: Recipe, end: int) -> list[Features]:
        """What is kept of the features of a session's shared pages before position `end`, without a gap."""
        prefix = self._by_session.get(session)
        if prefix is None or end != prefix.shared * self._pool.page_size:
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

    def first_seen(self, pages: int) -> int:
        """Of so many first pages of a text, the first that a token behind them sees; the last of them always counts as seen."""
        return max(0, min(pages - 1, self._pool.first_seen(pages * self._pool.page_size) // self._pool.page_size))

    def found(self, session: Session) -> int:
        """How many pages of a session's text, from the front, it can go on behind: those that the cache has, and states behind the last."""
        pages = self._known(session)
        if self._states is None:
            return pages
        digests = self._prefix(session, pages).digests
        while pages and self._cache.page(digests[pages - 1]) not in self._states.snapshots:
            pages -= 1
        return pages

    def idle(self, session: Session, pages: int) -> int:
        """How many of the first pages of a text are idle of which so many are found; most often these are all known ones."""
        prefix = self._prefix(session, pages)
        if pages < prefix.known:
            return self._cache.idle(prefix.digests[self.first_seen(pages) : pages])
        known, changes, _ = prefix.idle
        if (known, changes) != (prefix.known, self._cache.idle_changes):
            count = self._cache.idle(prefix.digests[self.first_seen(prefix.known) : prefix.known])
            prefix.idle = prefix.known, self._cache.idle_changes, count
        return prefix.idle[2]

    def take(self, session: Session, pages: int) -> Slots:
        """A session goes on behind so many pages of its text that were found -> those that it sees, which it holds from now on."""
        prefix = self._prefix(session, pages)
        known = prefix.digests[:pages]
        taken = self._cache.take(known[self.first_seen(pages) :])
        prefix.shared = pages
        self._cache.used(known)
        return taken

    def rest(self, session: Session, pages: range) -> None:
        """A session that goes on has released these pages of its text."""
        self._cache.rest(self._prefix(session, 0).digests[pages.start : pages.stop])

    def end(self, session: Session, first: int, *, sound: bool) -> None:
        """A session has released its pages, of which the first was this one. If their KV is not `sound`, nobody is to find any of them."""
        digests = self._by_session.pop(session.id, Prefix()).digests
        if sound:
            self._cache.rest(digests[first:])
        else:
            self._cache.forget(digests)

    def forget(self, session: Session) -> None:
        """A session that has no pages, and waits, is read with other numbers than when its text was last looked for."""
        self._by_session.pop(session.id, None)

    def _keep_features(self, feed: Feed | None, digests: Sequence[bytes], pages: range) -> None:
        if feed is not None:
            size = self._pool.page_size
            for page in reversed(pages):  # the end of a text goes before its beginning
                features = feed.kept(page * size, (page + 1) * size)
                if features is not None:
                    self._cache.keep(digests[page], feed.recipe, features)

    def _full(self, tokens: int) -> int:
        """Pages that so many tokens fill, of those that may be shared."""
        return tokens // self._pool.page_size if self._sharing else 0

    def _prefix(self, session: Session, pages: int) -> Prefix:
        """What is known of a session's first pages, with at least so many digests: whole blocks, as far as the text goes."""
        prefix = self._by_session.setdefault(session.id, Prefix())
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
        if self._pool.window is not None:
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
            gap = known.rfind(0, self.first_seen(last + 1), last)
            if gap < 0:
                break
            stop = gap  # whoever begins behind it sees it too
        return last + 1

    def _alike(self, one: Session, other: Session, page: int) -> bool:
        """True if two texts are the same up to the end of a page, and read with one adapter. Only texts that have the same tokens there
        are looked at in full.
        """
        tokens = slice(page * self._pool.page_size, (page + 1) * self._pool.page_size)
        if one.tokens[tokens] != other.tokens[tokens]:
            return False
        return self._prefix(one, page + 1).digests[page] == self._prefix(other, page + 1).digests[page]
