"""Recent outputs that sessions have in common: those of one client identity, or of everybody where the operator says so."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias

from specsplit.lookup.token_text import NO_TOKEN, TokenText
from specsplit.values import Vocabulary

Whose: TypeAlias = tuple[bytes, Vocabulary]
"""A scope, and the vocabulary in which the tokens mean something."""


class SharedTexts:
    """Outputs by scope and vocabulary."""

    def __init__(self, tokens: int, scopes: int, *, everybody: bool = False) -> None:
        """`tokens`: of each scope, at most; the oldest are forgotten. `scopes`: kept at once; the one not used for longest is forgotten.

        `everybody`: all sessions of one vocabulary are of one scope, those without one included.
        """
        self._everybody = everybody
        self._tokens = tokens
        self._scopes = scopes
        self._texts: OrderedDict[Whose, TokenText] = OrderedDict()

    def whose(self, scope: bytes, vocabulary: Vocabulary) -> Whose | None:
        """Tell with whom a session shares; None: with nobody."""
        if not self._tokens or not (scope or self._everybody):
            return None
        return b"" if self._everybody else scope, vocabulary

    def of(self, whose: Whose | None) -> TokenText:
        """Look up outputs, one behind the other."""
        text = None if whose is None else self._texts.get(whose)
        if whose is None or text is None:
            return _NOTHING
        self._texts.move_to_end(whose)
        return text

    def add(self, whose: Whose | None, output: Sequence[int]) -> None:
        """Keep an output."""
        if whose is None or not output:
            return
        if whose not in self._texts:
            if len(self._texts) >= self._scopes:
                self._texts.popitem(last=False)
            self._texts[whose] = TokenText((), self._tokens)
        self.of(whose).append([*output, NO_TOKEN])


_NOTHING: Final = TokenText()
UNSHARED: Final = SharedTexts(0, 1)
"""Shares nothing."""
