"""How the first pages of a text are known by name, to a verifier's prefix cache and to the coordinator that looks for one that has them.

A page is known by the SHA-256 of its tokens and of the digest of the page before it. The first page has a salt before it, which stands for
whatever else the KV depends on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

FIRST_PAGES: Final = 16
"""Pages of a text, from the front, that members report."""
REPORTED: Final = 512
"""Pages that a member reports, at most."""
_MARK_BYTES = 8


def extend(digests: list[bytes], tokens: Sequence[int], count: int, page_size: int, salt: bytes = b"") -> None:
    """Append to the digests of a text's pages, from the front, until there are `count`."""
    for page in range(len(digests), count):
        before = digests[-1] if digests else salt
        content = array("q", tokens[page * page_size : (page + 1) * page_size])
        digests.append(sha256(before + content.tobytes()).digest())


def mark(digest: bytes) -> int:
    """The first 64 bits of a digest: enough to look for a page, and not enough to take it for another text's."""
    return int.from_bytes(digest[:_MARK_BYTES], "big")


def first_marks(tokens: Sequence[int], page_size: int) -> tuple[int, ...]:
    """The marks of the first full pages before the last token of a text, which is never shared; at most as many as members report."""
    digests: list[bytes] = []
    extend(digests, tokens, min((len(tokens) - 1) // page_size, FIRST_PAGES), page_size)
    return tuple(map(mark, digests))
