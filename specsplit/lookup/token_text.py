"""Where has this text been before? The longest suffixes of a text that occur in a text, and what followed them.

A text is an array of its tokens and nothing else: no tree of suffixes and no table of n-grams is kept. To compare the whole array with one
token takes some 20 us for 32,000 tokens, and the places that are left are narrowed token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

LONGEST: Final = 32
"""Longer matches are counted as this long."""
NO_TOKEN: Final = -1
"""Stands before the first token and between texts, and matches nothing."""

_SURE: Final = 3
_RECENT: Final = 256
"""Of places that read the same for `_SURE` tokens only so many are looked at, the latest: text that says one word again and again."""
_BACKWARDS: Final = np.arange(LONGEST)


class Matches(NamedTuple):
    """Places of a text at which it reads as another text ends, m of them."""

    ends: npt.NDArray[np.int64]
    """[m] index of the token that follows each, ascending."""
    lengths: npt.NDArray[np.int64]
    """[m] how many tokens read the same, from 1 to `LONGEST`."""


class TokenText:
    """Tokens, to which more are appended, `most` at most: the oldest are forgotten, in large pieces."""

    def __init__(self, tokens: Sequence[int] = (), most: int | None = None) -> None:
        """`most`: tokens that are kept; None: all."""
        self._most = most
        self._data: Tokens = np.full(LONGEST + max(2 * len(tokens), 256), NO_TOKEN, dtype=np.int32)
        self._stop = LONGEST  # so many places before the first token can be looked at without a question
        self.append(tokens)

    def __len__(self) -> int:
        return self._stop - LONGEST

    @property
    def tokens(self) -> Tokens:
        """The tokens that are kept [n]."""
        return self._data[LONGEST : self._stop]

    @property
    def ending(self) -> Tokens:
        """The last `LONGEST` tokens, `NO_TOKEN` where there are fewer [LONGEST]."""
        return self._data[self._stop - LONGEST : self._stop]

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        if self._most is not None:
            tokens = tokens[-self._most :]
            if len(self) + len(tokens) > self._most:
                self._forget(len(self) + len(tokens) - self._most // 2)
        stop = self._stop + len(tokens)
        if stop > len(self._data):
            grown = np.full(2 * stop, NO_TOKEN, dtype=np.int32)
            grown[: self._stop] = self._data[: self._stop]
            self._data = grown
        self._data[self._stop : stop] = tokens
        self._stop = stop

    def matches(self, ending: Tokens, most: int) -> Matches:
        """Find the `most` longest suffixes of a text with this `ending` that stand here and are followed by a token, of equals the latest.

        Of a text's own ending that is itself left out.
        """
        data = self._data[: self._stop - 1]
        ending = np.where(ending == NO_TOKEN, NO_TOKEN - 1, ending)  # so that it matches no other place without a token
        found = (data == ending[-1]).nonzero()[0]
        for length in range(1, LONGEST):
            if len(found) <= most:
                break
            if length == _SURE:
                found = found[-_RECENT:]
            longer = data.take(found - length) == ending[-1 - length]
            if (missing := most - np.count_nonzero(longer)) >= 0:
                longer[(~longer).nonzero()[0][-missing:] if missing else _NOWHERE] = True
            found = found.compress(longer)
        found = found[-most:]
        same = data.take(found[:, None] - _BACKWARDS) == ending[::-1]
        lengths = np.where(same.all(axis=1), LONGEST, same.argmin(axis=1))
        return Matches(found + 1, lengths)

    def following(self, places: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """Look up `count` tokens from each of these places on [m, count]; a place p >= `end` of the text holds -2 - (p - end)."""
        wanted = places[:, None] + np.arange(count)
        beyond = wanted - self._stop
        return np.where(beyond < 0, self._data.take(np.minimum(wanted, self._stop - 1)), -2 - beyond)

    def _forget(self, count: int) -> None:
        """Forget so many of the oldest tokens."""
        kept = self._data[LONGEST + count : self._stop].copy()
        self._data[LONGEST : LONGEST + len(kept)] = kept
        self._stop = LONGEST + len(kept)


_NOWHERE: Final = np.empty(0, dtype=np.int64)
