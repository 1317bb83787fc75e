"""Where has this text been before? Suffix matches of a growing sequence in itself.

A match of a context is an earlier position at which the sequence read the same for at least one token; its length says for how many. The
matches of a context with one more token follow from those of the context: a match goes on if the token after it is that token, and every
recent occurrence of that token begins a match of length 1. So neither an index of every n-gram nor a suffix tree is needed: the index is a
list of positions per token (one append per committed token), and a node of a tree costs one pass over its parent's matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Matches: TypeAlias = Mapping[int, int]
"""Position of the last matching token -> how many tokens match, up to and including it."""

RECENT = 32
"""Latest occurrences of a token that may begin a match: bounds the cost of a node whatever the sequence's length."""
LONGEST = 32
"""Longer matches are counted as this long."""


@dataclass(frozen=True)
class Context:
    """The committed sequence and a path below it, with its matches."""

    path: tuple[int, ...]
    """Tokens after the committed ones."""
    matches: Matches


class SuffixIndex:
    """The committed tokens of one session, and the matches of any path below them."""

    def __init__(self, tokens: Iterable[int], recent: int = RECENT, longest: int = LONGEST) -> None:
        self._tokens: list[int] = []
        self._occurrences: dict[int, list[int]] = {}
        self._recent = recent
        self._longest = longest
        for token in tokens:
            self._append(token)
        self.committed = self._match_end()
        """The context of the committed tokens alone."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that were committed."""
        for token in tokens:
            self._append(token)
        self.committed = self._match_end()

    def child(self, context: Context, token: int) -> Context:
        """Make the context with one more token at its end. O(recent)."""
        end = len(self._tokens) + len(context.path)
        return Context((*context.path, token), self._advance(context.matches, context.path, token, end))

    def continuations(self, context: Context) -> dict[int, list[int]]:
        """Find what came after the matches: length of a match -> positions of the tokens that followed it, latest first."""
        end = len(self._tokens) + len(context.path)
        found: dict[int, list[int]] = {}
        for position, length in sorted(context.matches.items(), reverse=True):
            if position + 1 < end:
                found.setdefault(length, []).append(position + 1)
        return found

    def token_at(self, position: int, path: Sequence[int] = ()) -> int:
        """Look up the token at a position of the committed tokens and a path below them: text may repeat what is only drafted yet."""
        past = position - len(self._tokens)
        return path[past] if past >= 0 else self._tokens[position]

    def _append(self, token: int) -> None:
        self._occurrences.setdefault(token, []).append(len(self._tokens))
        self._tokens.append(token)

    def _match_end(self) -> Context:
        """Match the committed tokens, from as many of the last ones as a match can be long."""
        matches: Matches = {}
        for position in range(max(0, len(self._tokens) - self._longest), len(self._tokens)):
            matches = self._advance(matches, (), self._tokens[position], position)
        return Context((), matches)

    def _advance(self, matches: Matches, path: Sequence[int], token: int, end: int) -> Matches:
        """Make the matches of a sequence of `end` tokens with `token` after it from those without."""
        advanced = {position: 1 for position in self._occurrences.get(token, ())[-self._recent :] if position < end}
        for position, length in matches.items():
            after = position + 1
            if after < end and self.token_at(after, path) == token:
                advanced[after] = min(length + 1, self._longest)
        if len(advanced) > 2 * self._recent:
            likeliest = sorted(advanced.items(), key=lambda match: (match[1], match[0]), reverse=True)
            advanced = dict(likeliest[: 2 * self._recent])
        return advanced
