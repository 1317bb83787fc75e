"""What a grammar nearly forces: where few texts may follow, as the values of an enumeration or `,` and `]` behind an item, all of them.

Texts are told apart by bytes and spelled as the tokenizer would, so where two of them part within a token nothing is lost. To see that
much may follow, which it does within strings and numbers, takes a few tokens that are tried; no mask is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llguidance import LLMatcher

from specsplit.grammar.tokens import Tokens

FEW: Final = 4
"""Texts that are followed at once, at most."""
LOOKS: Final = 8
"""Places that are looked at, at most."""


class Outline(NamedTuple):
    """A tree of tokens below a place of an output."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    """Index of the token above each; -1: the place itself. Parents stand before their children."""
    parts: Sequence[float] = ()
    """The part that each has of what may follow the place above it, if texts were equally likely where they part; 1: it has to follow."""


class _Text(NamedTuple):
    """A text that may follow."""

    spelled: bytes
    share: float
    sure: int
    """Bytes of it whose tokens do not depend on what comes behind."""
    open: bool = True
    """True if it may be that few texts go on from here."""


def outline(matcher: LLMatcher, tokens: Tokens, forced: list[int]) -> Outline:
    """Follow the few texts that there may be behind what is forced where a matcher stands; none if there are many."""
    taken = matcher.try_consume_tokens(forced)
    texts = [_Text(b"", 1.0, 0)]
    for _ in range(LOOKS):
        at = next((number for number, text in enumerate(texts) if text.open), None)
        if at is None:
            break
        found = _behind(matcher, tokens, texts[at])
        fits = found and len(texts) - 1 + len(found) <= FEW
        texts = [*texts[:at], *texts[at + 1 :], *(found if fits else [texts[at]._replace(open=False)])]
    matcher.rollback(taken)
    return _tree_of(texts, tokens)


def _behind(matcher: LLMatcher, tokens: Tokens, text: _Text) -> list[_Text]:
    """The texts that go on from the end of one; none if they are many."""
    spelling = tokens.spell(text.spelled)
    taken = matcher.try_consume_tokens(spelling)
    found: list[_Text] = []
    if taken == len(spelling) and not matcher.is_stopped():
        letters = _letters(matcher, tokens)
        share = text.share / max(1, len(letters) + matcher.is_accepting())
        found = [_text_from(matcher, tokens, text.spelled, letter, share) for letter in letters]
    matcher.rollback(taken)
    return found


def _letters(matcher: LLMatcher, tokens: Tokens) -> list[int]:
    """The tokens of one byte that may follow; none if they are more than a few."""
    found: list[int] = []
    for token in tokens.letters:
        if matcher.validate_tokens([token]):
            found.append(token)
            if len(found) > FEW:
                return []
    return found


def _text_from(matcher: LLMatcher, tokens: Tokens, before: bytes, letter: int, share: float) -> _Text:
    """Follow a byte up to where the text may go on in more than one way."""
    matcher.consume_token(letter)
    begun = before + tokens.letters[letter]
    forced, sure = matcher.compute_ff_bytes(), tokens.tokenizer.decode_bytes(matcher.compute_ff_tokens())
    matcher.rollback(1)
    return _Text(begun + forced, share, len(begun) + len(sure))


def _tree_of(texts: Sequence[_Text], tokens: Tokens) -> Outline:
    """Spell texts by tokens, those that they begin with alike once."""
    places: dict[tuple[int, int], int] = {}
    shares: list[float] = []
    for text in texts:
        parent, length = -1, 0
        for token in tokens.spell(text.spelled):
            length += len(tokens.tokenizer.decode_bytes([token]))
            if length > text.sure:
                break
            parent = places.setdefault((parent, token), len(places))
            shares += [0.0] if parent == len(shares) else []
            shares[parent] += text.share
    parents = [parent for parent, _ in places]
    parts = [share / (1.0 if parent < 0 else shares[parent]) for parent, share in zip(parents, shares, strict=True)]
    return Outline([token for _, token in places], parents, parts)
