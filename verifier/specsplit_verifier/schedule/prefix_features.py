"""Features of the pages that sessions share: a head that begins on shared pages is fed from here, and nothing is computed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from specsplit.features import Features
from specsplit_verifier.records.feed import Recipe


class PrefixFeatures:
    """Features of whole pages by digest, of one recipe each, within `max_bytes` of host memory; the least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes: Final = max_bytes
        self._pages: OrderedDict[bytes, tuple[Recipe, Features]] = OrderedDict()
        self._new: list[Features] = []
        self._newest: list[Features] = []
        """Put since `make_bytes` was last called; those before are `_new`."""
        self.nbytes = 0
        """Memory held, once all bytes are made."""

    def put(self, digest: bytes, recipe: Recipe, features: Features) -> None:
        """Keep a page's features in the place of those of another recipe."""
        self.forget([digest])
        if features.nbytes <= self._max_bytes:
            self._pages[digest] = recipe, features
            self._newest.append(features)
            self.nbytes += features.nbytes
        while self.nbytes > self._max_bytes:
            self.forget([next(iter(self._pages))])

    def last(self, digests: Sequence[bytes], recipe: Recipe) -> list[Features]:
        """Features of as many of a text's pages as there are, from the last one back, in order of position."""
        found: list[Features] = []
        for digest in reversed(digests):
            kept = self._pages.get(digest)
            if kept is None or kept[0] != recipe:
                break
            found.append(kept[1])
            self._pages.move_to_end(digest)  # the end of a text goes before its beginning
        return found[::-1]

    def make_bytes(self) -> None:
        """Make the bytes of what was put before this was last called, of which every step is over: it holds nothing else then."""
        for features in self._new:
            features.make_bytes()
        self._new, self._newest = self._newest, []

    def forget(self, digests: Iterable[bytes]) -> None:
        """Drop what is kept of these pages."""
        for digest in digests:
            kept = self._pages.pop(digest, None)
            if kept is not None:
                self.nbytes -= kept[1].nbytes
