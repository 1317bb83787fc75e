"""The tree of what followed where texts read like this one, likeliest first (SuffixDecoding, arXiv 2411.04975).

Each match votes for the token behind it. Probabilities come from counts by prediction with partial matching (Cleary and Witten 1984):
the longest matches speak first, what they leave goes to shorter ones, and a token that a longer match has named is not named again by a
shorter one. Of total + distinct / length shares, distinct / length are left: a long match leaves little. Matches that agree with a
drafted token vote below it, as matches that are one token longer.

A match is followed for so many tokens as its length warrants: what reads like one word goes its own way after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from specsplit.lookup.token_text import LONGEST, NO_TOKEN, Matches, TokenText

MATCHES: Final = 16
"""Matches in one text."""
DEEPEST: Final = 32
"""Levels below the root."""
LEVELS_PER_MATCHED: Final = 8
"""Tokens that a match is followed for by each token of its length."""
LEAST: Final = 0.03
"""Survival of a node that is looked behind, by these counts."""
MOST_NODES: Final = 32
"""Candidates in one tree, beyond which no further node is looked behind."""


class Continuation(NamedTuple):
    """What followed a match."""

    length: int
    """Tokens that matched."""
    tokens: Sequence[int]
    """Tokens behind it; `NO_TOKEN` where the text is over, -2 - n for the n-th token that is drafted."""


class DrawnTree(NamedTuple):
    """A root and n - 1 nodes below it, parents first, likelier ones before others, each with its candidates."""

    above: Sequence[int]
    """[n] row of each node's parent; -1 for the root, which is the first."""
    tokens: Sequence[int]
    """[n]; `NO_TOKEN` for the root."""
    candidates: Sequence[Sequence[tuple[int, float]]]
    """[n] (token, raw log-probability) of what may follow each, likeliest first. The nodes, but for the root, are among their parents'."""


_Candidate: TypeAlias = tuple[int, float, list[Continuation]]
"""Token, probability, and the matches that name it."""


def continuations(text: TokenText, matches: Matches) -> list[Continuation]:
    """List what followed each of these matches in a text, the latest first."""
    tokens = text.following(matches.ends, DEEPEST).tolist()
    return [*map(Continuation, matches.lengths.tolist()[::-1], tokens[::-1])]


def draw(
    found: Iterable[Continuation],
    children: int,
    floor: float = 0.0,
    *,
    depth: int = DEEPEST,
    nodes: int = MOST_NODES,
) -> DrawnTree:
    """Draw the tree of these continuations, of equally long ones the likelier first: `children` candidates at most for each node.

    floor: survival of a node that is looked behind, by these counts, if that is more than `LEAST`. depth: levels below the root.
    nodes: what is drawn has so many of the likeliest at least, as far as there are any.
    """
    least, deepest = max(LEAST, floor), min(depth, DEEPEST)
    above: list[int] = []
    tokens: list[int] = []
    rows: list[list[tuple[int, float]]] = []
    drawn = 0
    ranked = sorted(found, key=lambda each: -each.length)
    left: list[tuple[float, int, int, tuple[int, ...], list[Continuation]]] = [(-1.0, 0, -1, (), ranked)]
    while left and drawn < MOST_NODES and len(rows) < nodes:
        negative, _, parent, path, matches = heappop(left)
        candidates = behind(path, matches, children)
        if parent >= 0 and not candidates:
            continue
        row = len(rows)
        above.append(parent)
        tokens.append(path[-1] if path else NO_TOKEN)
        rows.append([(token, math.log(probability)) for token, probability, _ in candidates])
        for token, probability, own in candidates:
            drawn += 1
            if negative * probability <= -least and len(path) + 1 < deepest:
                heappush(left, (negative * probability, drawn, row, (*path, token), own))
    return DrawnTree(above, tokens, rows)


def behind(path: tuple[int, ...], matches: Sequence[Continuation], children: int) -> list[_Candidate]:
    """Find what may follow a path, given the matches that agree with it, longest first."""
    votes: dict[int, list[Continuation]] = {}
    probabilities: dict[int, float] = {}
    counts: dict[int, int] = {}
    left, length, depth = 1.0, 0, len(path)
    for match in matches:
        if depth >= LEVELS_PER_MATCHED * match.length:
            break
        token = match.tokens[depth]
        if token == NO_TOKEN:
            continue
        if token < 0:
            token = path[-2 - token]
        if match.length != length:
            left, length, counts = _share(counts, left, length + depth, probabilities), match.length, {}
        if token not in probabilities:
            counts[token] = counts.get(token, 0) + 1
        votes.setdefault(token, []).append(match)
    _share(counts, left, length + depth, probabilities)
    best = sorted(probabilities.items(), key=lambda item: -item[1])[:children]
    return [(token, probability, votes[token]) for token, probability in best]


def _share(counts: dict[int, int], left: float, length: int, probabilities: dict[int, float]) -> float:
    """Give the tokens that matches of one length have named their parts of what longer ones left, and return what is left of it."""
    if not counts:
        return left
    escape = len(counts) / min(length, LONGEST)
    total = sum(counts.values()) + escape
    for token, count in counts.items():
        probabilities[token] = left * count / total
    return left * escape / total
