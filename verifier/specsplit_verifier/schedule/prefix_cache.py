"""Pages of KV that sessions share: full ones, found again by their tokens and all tokens before them.

A page is known by the digest that `specsplit.prefix` makes of its tokens and all before them, and of the adapter that it was computed with.
So what is found was computed of the same tokens by the same model. The cache is one holder of every page that it knows. Pages that it alone
holds are idle: they wait for a session, and the least recently used is evicted when pages are needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

import numpy as np

from specsplit.features import Features
from specsplit.model.pages.pool import PagePool
from specsplit.model.pages.tables import Slots
from specsplit.prefix import FIRST_PAGES, REPORTED, extend, mark
from specsplit_verifier.records.feed import Recipe
from specsplit_verifier.schedule.block_log import BlockLog
from specsplit_verifier.schedule.prefix_features import PrefixFeatures


class PrefixCache:
    """Pages by digest. Those that a session takes or puts are held by that session too."""

    def __init__(self, pool: PagePool, feature_bytes: int = 0) -> None:
        """`feature_bytes`: host memory for features of the pages that are here, at most."""
        self._pool: Final = pool
        self.features: Final = PrefixFeatures(feature_bytes)
        self.recent: Final = RecentPrefixes()
        self.blocks: Final = BlockLog()
        self._pages: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, int] = OrderedDict()
        """Pages that no session holds, the least recently used first."""
        self.losses = 0
        """How often pages that were known have gone; what was counted of known pages before that says nothing."""
        self.gains = 0
        """How often pages were put here that were not known."""
        self.idle_changes = 0
        """How often pages have become idle, or are so no longer."""

    @property
    def idle_pages(self) -> int:
        """Pages that `evict` can free."""
        return len(self._idle)

    def extend(self, digests: list[bytes], tokens: Sequence[int], count: int, salt: bytes = b"") -> None:
        """Append to the digests of a text's pages, from the front, until there are `count`. `salt`: what KV depends on beside tokens."""
        extend(digests, tokens, count, self._pool.page_size, salt)

    def page(self, digest: bytes) -> int:
        """Look up a page that is here."""
        return self._pages[digest]

    def first_unknown(self, digests: Sequence[bytes], start: int, stop: int) -> int:
        """The first page, of those from `start` on, that is not here; `stop` if all before that are."""
        for page in range(start, stop):
            if digests[page] not in self._pages:
                return page
        return stop

    def known(self, digests: Sequence[bytes]) -> list[bytes]:
        """The digests, from the front, whose pages are here."""
        return list(takewhile(self._pages.__contains__, digests))

    def are_known(self, digests: Sequence[bytes]) -> bytes:
        """By page, 1 if it is here and else 0."""
        return bytes(map(self._pages.__contains__, digests))

    def idle(self, digests: Sequence[bytes]) -> int:
        """How many of these pages are idle."""
        return sum(digest in self._idle for digest in digests)

    def take(self, digests: Sequence[bytes]) -> Slots:
        """A session holds these known pages from now on."""
        pages = np.array([self._pages[digest] for digest in digests], dtype=np.int64)
        self._pool.share(pages)
        self.idle_changes += 1
        for digest in digests:
            self._idle.pop(digest, None)
        return pages

    def put(self, digests: Sequence[bytes], pages: Slots) -> frozenset[bytes]:
        """A session's pages are computed: those whose like is not known yet are here from now on -> the digests of these.

        So are those whose like has lost its window page, and theirs is there: in the place of that.
        """
        fresh = {
            digest: page
            for digest, page in zip(digests, pages.tolist(), strict=True)
            if digest not in self._pages or self._renews(self._pages[digest], page)
        }
        stale = {digest: self._pages[digest] for digest in fresh if digest in self._pages}
        new = frozenset(fresh.keys() - stale.keys())
        self._pages.update(fresh)
        self.gains += bool(fresh)
        self._pool.share(np.fromiter(fresh.values(), dtype=np.int64))
        if stale:
            self.idle_changes += 1
            for digest in stale:
                self._idle.pop(digest, None)
            self._pool.release(np.fromiter(stale.values(), dtype=np.int64))
        return new

    def _renews(self, known: int, page: int) -> bool:
        windows = self._pool.windows
        return windows is not None and windows.has(page) and not windows.has(known)

    def used(self, digests: Sequence[bytes]) -> None:
        """A session has a text that begins with these pages: the coordinator is told of those, from the front, that are here."""
        self.recent.used(self.known(digests[:FIRST_PAGES]))

    def keep(self, digest: bytes, recipe: Recipe, features: Features) -> None:
        """Features of a page that is here were computed."""
        if digest in self._pages:
            self.features.put(digest, recipe, features)

    def rest(self, digests: Sequence[bytes]) -> None:
        """A session that used these pages has released them: those that nobody else uses are idle, and the last of the text go first."""
        self.idle_changes += 1
        for digest in reversed(digests):
            page = self._pages.get(digest)
            if page is not None and self._pool.holders(page) == 1:
                self._idle[digest] = page
                self._idle.move_to_end(digest)

    def evict(self, count: int) -> None:
        """Free so many idle pages."""
        self.forget([digest for digest, _ in zip(self._idle, range(count), strict=False)])

    def flush(self) -> tuple[int, int]:
        """Free all idle pages -> (pages freed, pages that are still here, since sessions have them)."""
        idle = len(self._idle)
        if idle:
            self.evict(idle)
        return idle, len(self._pages)

    def forget(self, digests: Sequence[bytes]) -> None:
        """Nobody finds these pages again."""
        self.losses += 1
        self.idle_changes += 1
        for digest in digests:
            self._idle.pop(digest, None)
        self.features.forget(digests)
        self.recent.forget(digests)
        self.blocks.removed(digests)
        pages = [page for digest in digests if (page := self._pages.pop(digest, None)) is not None]
        self._pool.release(np.sort(np.array(pages, dtype=np.int64)))  # so that they are handed out side by side


class RecentPrefixes:
    """The first pages of the latest texts, as far as they are computed. Belongs to the engine thread, but for `marks`."""

    def __init__(self) -> None:
        self._pages: OrderedDict[bytes, None] = OrderedDict()
        self.marks: tuple[int, ...] = ()
        """The latest used last; made anew with every change, so that any thread may read it."""

    def used(self, digests: Sequence[bytes]) -> None:
        """These pages are there, and a session has a text that begins with them."""
        for digest in reversed(digests[:FIRST_PAGES]):  # the first page of a text is forgotten last
            self._pages[digest] = None
            self._pages.move_to_end(digest)
        while len(self._pages) > REPORTED:
            self._pages.popitem(last=False)
        self._tell()

    def forget(self, digests: Sequence[bytes]) -> None:
        """These pages are gone."""
        known = [digest for digest in digests if digest in self._pages]
        for digest in known:
            del self._pages[digest]
        if known:
            self._tell()

    def _tell(self) -> None:
        self.marks = tuple(map(mark, self._pages))
