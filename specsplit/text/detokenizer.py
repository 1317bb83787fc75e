"""Text out of tokens as they come, in constant time per token, never half a character, and the same however many come at once.

Two ways, chosen by what the tokenizer's decoder is. A byte-level decoder maps each token to bytes on its own, so an incremental UTF-8
decoder is exact. Any other decoder looks at neighbours, so the tokens of the last piece are decoded again with each new one (the
method of Hugging Face text-generation-inference). A piece begins and ends between characters, so the window never cuts one: a
byte-fallback decoder gives up a whole run of bytes for a character that is cut. What is no text never enters the window, and of what
waits for text it holds a few tokens: a character has four bytes at most, and a decoder that writes nothing for a token
decides with the one behind it.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from copy import copy
from itertools import islice
from typing import Protocol

_REPLACEMENT = "\ufffd"
_WINDOW = 5
"""Tokens of the prompt that decide how the first one of the output is written (spaces, mostly)."""
_LONGEST_CHARACTER = 4
"""Tokens that one character can be spread over, at most: UTF-8 has up to four bytes."""


class Detokenizer(Protocol):
    """Turns one output's tokens into text. What `feed` and `flush` return, joined, equals decoding all tokens at once."""

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that became final with these tokens; what ends inside a character is kept for the next."""
        ...

    def flush(self) -> str:
        """What is left at the end: bytes that never became a character, as U+FFFD."""
        ...

    def copy(self) -> Detokenizer:
        """Another one, which goes on from here by itself."""
        ...


class NoText:
    """Makes no text, for output of which nobody reads any."""

    def feed(self, tokens: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""

    def copy(self) -> NoText:
        return self


class ByteDetokenizer:
    """Turns tokens of byte-level tokenizers into text."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._bytes_of, tokens)))

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def copy(self) -> ByteDetokenizer:
        other = ByteDetokenizer(self._bytes_of)
        other._decoder.setstate(self._decoder.getstate())
        return other


class WindowDetokenizer:
    """For every other tokenizer. `decode` turns a few token ids into text; `context` are the last tokens before the output."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        context: Sequence[int] = (),
        is_text: Callable[[int], bool] = lambda token: True,
    ) -> None:
        """`is_text` is False for tokens that `decode` leaves out wherever they stand."""
        self._decode = decode
        self._is_text = is_text
        self._window = _whole(decode, _last(context, is_text))
        self._written = len(self._window)
        """How many tokens of the window are already text."""
        self._inside = 0
        """How many tokens in a row ended inside a character."""

    def feed(self, tokens: Sequence[int]) -> str:
        if len(tokens) > 1 and (text := self._at_once(tokens)):
            return text
        return "".join(map(self._feed, tokens))

    def copy(self) -> WindowDetokenizer:
        other = copy(self)
        other._window = [*self._window]
        return other

    def _at_once(self, tokens: Sequence[int]) -> str:
        """The text of tokens by one look at all of them, if they end between characters and none of those is broken; empty: they do not,
        or write nothing, and none has been taken.
        """
        piece = [*self._window[self._written :], *filter(self._is_text, tokens)]
        before = self._window[: self._written]
        text = self._decode([*before, *piece])[len(self._decode(before)) :]
        if not text or _REPLACEMENT in text:
            return ""
        self._window = _last_characters(self._decode, piece)
        self._written, self._inside = len(self._window), 0
        return text

    def _feed(self, token: int) -> str:
        if not self._is_text(token):
            return ""
        self._window.append(token)
        text = self._pending()
        self._inside = self._inside + 1 if text.endswith(_REPLACEMENT) else 0
        if not text:
            self._forget()
        if not text or 0 < self._inside < _LONGEST_CHARACTER:
            return ""
        self._slide()
        return text

    def flush(self) -> str:
        text = self._pending()
        self._slide()
        return text

    def _pending(self) -> str:
        written = self._decode(self._window[: self._written])
        return self._decode(self._window)[len(written) :]

    def _forget(self) -> None:
        """Of tokens in a row that have become no text keep as many as may matter to the next one, however many come."""
        if len(self._window) - self._written > _WINDOW:
            del self._window[self._written]

    def _slide(self) -> None:
        """Keep the piece that was just written, which begins between characters."""
        del self._window[: self._written]
        self._written = len(self._window)
        self._inside = 0


def _last(context: Sequence[int], is_text: Callable[[int], bool]) -> Sequence[int]:
    """The last tokens of the context that are text, as many as `_whole` may look at."""
    return [*islice(filter(is_text, reversed(context)), _WINDOW + _LONGEST_CHARACTER - 1)][::-1]


def _last_characters(decode: Callable[[Sequence[int]], str], piece: Sequence[int]) -> list[int]:
    """The last token of a piece, or the last few if its text ends with a character that is spread over them."""
    ends = (list(piece[-length:]) for length in range(1, _LONGEST_CHARACTER))
    return next((end for end in ends if _REPLACEMENT not in decode(end)), list(piece[-_LONGEST_CHARACTER:]))


def _whole(decode: Callable[[Sequence[int]], str], context: Sequence[int]) -> list[int]:
    """The last tokens of the context, from the border of a character."""
    windows = [list(context[-length:]) for length in range(_WINDOW, _WINDOW + _LONGEST_CHARACTER)]
    return next((window for window in windows if _REPLACEMENT not in decode(window)), windows[0])
