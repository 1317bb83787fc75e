"""Whether a text repeats itself now: a drafter that was of no use before may be of much use then, above all one without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LEAST: Final = 3
"""Tokens in a row that stood in the text before. Two do so by chance."""
LASTING: Final = 8
"""So many tokens behind the last that did, the text is taken to repeat itself still."""
PLACES: Final = 1 << 13
"""Runs of `LEAST` tokens that are remembered, the latest."""


class Repeats:
    """Follows one text. A run of tokens is remembered by its hash, in a table in which later runs displace earlier ones."""

    def __init__(self) -> None:
        self._runs = [0] * PLACES
        self._read = 0
        """Tokens that have been read."""
        self._left = 0
        """Tokens for which the text is taken to repeat itself still."""

    @property
    def now(self) -> bool:
        """True if the text repeats itself where it ends."""
        return self._left > 0

    def read(self, tokens: Sequence[int]) -> None:
        """Take in a text that begins with what was read before. It takes less than a microsecond a token, and 3 ms at most."""
        for end in range(max(self._read + 1, LEAST, len(tokens) - PLACES), len(tokens) + 1):
            run = hash(tuple(tokens[end - LEAST : end]))
            self._left = LASTING if self._runs[run % PLACES] == run else max(0, self._left - 1)
            self._runs[run % PLACES] = run
        self._read = len(tokens)
