"""Recent outputs that sessions of one scope have in common: of one client identity, or of everybody where the operator says so."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from specsplit_drafter.kinds.suffix import NO_TOKEN, Text


class SharedTexts:
    """Outputs by scope. A session without a scope shares with nobody."""

    def __init__(self, tokens: int, scopes: int, *, everybody: bool = False) -> None:
        """`tokens`: of each scope, at most; the oldest are forgotten. `scopes`: kept at once; the one not used for longest is forgotten.

        `everybody`: all sessions are of one scope, those without one included.
        """
        self._everybody = everybody
        self._tokens = tokens
        self._scopes = scopes
        self._texts: OrderedDict[bytes, Text] = OrderedDict()

    def of(self, scope: bytes) -> Text:
        """Look up the outputs of a scope, one behind the other; none for no scope."""
        scope = _ONE if self._everybody else scope
        text = self._texts.get(scope)
        if text is None:
            return _NOTHING
        self._texts.move_to_end(scope)
        return text

    def add(self, scope: bytes, output: Sequence[int]) -> None:
        """Keep an output."""
        scope = _ONE if self._everybody else scope
        if not scope or not output or not self._tokens:
            return
        if scope not in self._texts:
            if len(self._texts) >= self._scopes:
                self._texts.popitem(last=False)
            self._texts[scope] = Text((), self._tokens)
        self.of(scope).append([*output, NO_TOKEN])


_ONE: Final = b"everybody"
_NOTHING: Final = Text()
UNSHARED: Final = SharedTexts(0, 1)
"""Shares nothing."""
