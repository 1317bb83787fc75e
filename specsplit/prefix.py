"""How the first pages of a text are known by name, to a verifier's prefix cache and to the coordinator that looks for one that has them.

A page is known by the SHA-256 of its tokens and of the digest of the page before it. The first page has a salt before it, which stands for
whatever else the KV depends on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

FIRST_PAGES: Final = 16
"""Pages of a text, from the front, that members report."""
REPORTED: Final = 512
"""Pages that a member reports, at most."""
BLOCK: Final = 16
"""Pages whose digests are remembered together; every text is cut at the same pages."""
_BLOCKS = 512
_MARK_BYTES = 8


def extend(digests: list[bytes], tokens: Sequence[int], count: int, page_size: int, salt: bytes = b"") -> None:
    """Append to the digests of a text's pages, from the front, until there are `count`.

    Those of whole blocks are looked up first: many texts that come at once begin alike.
    """
    while len(digests) < count:
        first = len(digests)
        last = min(first - first % BLOCK + BLOCK, count)
        make = _remembered if last - first == BLOCK else _digests
        digests += make(
            digests[-1] if digests else salt, tuple(tokens[first * page_size : last * page_size]), page_size
        )


def _digests(before: bytes, content: tuple[int, ...], page_size: int) -> tuple[bytes, ...]:
    """The digests of pages that follow the page with the digest `before`."""
    made: list[bytes] = []
    packed, size = array("q", content).tobytes(), page_size * array("q").itemsize
    for start in range(0, len(packed), size):
        before = sha256(before + packed[start : start + size]).digest()
        made.append(before)
    return tuple(made)


_remembered = lru_cache(maxsize=_BLOCKS)(_digests)


def mark(digest: bytes) -> int:
    """The first 64 bits of a digest: enough to look for a page, and not enough to take it for another text's."""
    return int.from_bytes(digest[:_MARK_BYTES], "big")


def first_marks(tokens: Sequence[int], page_size: int, salt: bytes = b"") -> tuple[int, ...]:
    """The marks of the first full pages before the last token of a text, which is never shared; at most as many as members report."""
    digests: list[bytes] = []
    extend(digests, tokens, min((len(tokens) - 1) // page_size, FIRST_PAGES), page_size, salt)
    return tuple(map(mark, digests))
