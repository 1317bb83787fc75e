"""Which pages the texts of a verifier's sessions begin with, as far as they can still be shared: what the coordinator is told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from specsplit.prefix import FIRST_PAGES, REPORTED, mark


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
