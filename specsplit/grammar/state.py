"""Where the output of one session stands in its grammar, and what may follow there and behind what is drafted.

n   tokens of a draft, root first      W   words of 32 tokens
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from specsplit.errors import InvalidRequest
from specsplit.grammar.outline import Outline, outline
from specsplit.grammar.problems import sentence_of
from specsplit.grammar.tokens import Tokens
from specsplit.values import ConstraintKind

Words: TypeAlias = NDArray[np.int32]
"""A bit for every token, the lowest of a word first; 1: it may be picked."""


class Recipe(Protocol):
    """A compiled constraint (`Compiled`)."""

    kind: Final[ConstraintKind]
    tokens: Final[Tokens]
    spent: bool

    def matcher(self) -> LLMatcher: ...

    def fresh(self) -> LLMatcher: ...


class GrammarState:
    """The state of one output. One thread at a time."""

    def __init__(self, compiled: Recipe, ends: Collection[int], own_ends: Collection[int]) -> None:
        """`ends`: tokens that end the output. They may be picked where the text may end; those that are text of the grammar may be, too.

        `own_ends`: end tokens of the model, which are no text.
        """
        self._compiled = compiled
        self._matcher = compiled.matcher()
        self._tokens: list[int] = []
        self._ends = frozenset(ends)
        self._end_bits = self._bits(ends)
        self._text_bits = ~self._bits((*own_ends, compiled.tokens.end))
        """The tokens that may be text."""
        self.forced: list[int] = self._matcher.compute_ff_tokens()
        """The tokens that spell what has to follow, as the tokenizer would. Others may spell it too, so this is a draft and no more."""
        self._outline: Outline | None = None
        self.complete = False
        """True once nothing more may follow."""
        self.problem = ""
        """Why it cannot be said any more what may follow; empty: it can."""

    @property
    def broken(self) -> bool:
        """True if the tokens so far are none of the grammar, or it is too complex to say so."""
        return self._matcher.is_error()

    @property
    def failure(self) -> InvalidRequest:
        """The problem as an error for the caller."""
        return InvalidRequest(self._compiled.kind, self.problem)

    @property
    def _dead_end(self) -> str:
        """Why nothing may follow where the matcher stands."""
        if not self.broken or "NoExtension" in self._matcher.get_error():
            return "allows no token of this model"
        return f"is too complex ({sentence_of(self._matcher.get_error())})"

    @property
    def _at_end(self) -> bool:
        """True if the matcher stands where nothing more may follow."""
        return self._matcher.is_stopped() and self._matcher.is_accepting()

    @property
    def outline(self) -> Outline:
        """The few texts that there may be behind what is forced; none if there are many."""
        if self._outline is None:
            self._outline = Outline() if self.complete else outline(self._matcher, self._compiled.tokens, self.forced)
        return self._outline

    def advance(self, tokens: Sequence[int]) -> int:
        """Take in tokens that are committed -> how many the output keeps of them: it ends where it is complete."""
        count = 0
        for token in tokens:
            if self.complete:
                break
            count += 1
            self._tokens.append(token)
            self.complete = self._matcher.consume_token(token) and self._at_end
        self.forced = [] if self.complete else self._matcher.compute_ff_tokens()
        self._outline = None
        return count

    def forced_behind(self, path: list[int]) -> tuple[int, list[int]]:
        """What has to follow some of these tokens, and they do not have: behind how many of them, and the tokens that spell it."""
        matcher, taken, forced = self._matcher, 0, self.forced
        while path[taken : taken + len(forced)] == forced[: len(path) - taken] and taken < len(path):
            if not matcher.try_consume_tokens([path[taken]]):
                forced = []
                break
            taken += 1
            forced = matcher.compute_ff_tokens()
        matcher.rollback(taken)
        return taken, forced

    def legal(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Indices of the tokens of a draft, root first, parents before children, that may be picked behind those above them, in order."""
        matcher, depth, below = self._matcher, 0, _children(parents)
        left, found = [(child, 1) for child in below[0]], [0]
        while left:
            node, level = left.pop()
            matcher.rollback(depth - level + 1)
            depth = level - 1
            if tokens[node] in self._ends:
                found += [node] if matcher.is_accepting() or matcher.validate_tokens([tokens[node]]) else []
            elif matcher.try_consume_tokens([tokens[node]]):
                found.append(node)
                depth = level
                if not matcher.is_stopped():  # else the output is over behind it
                    left += ((child, level + 1) for child in below[node])
        matcher.rollback(depth)
        return sorted(found)

    def draftable(self, paths: Sequence[tuple[int, ...]]) -> Words:
        """What is worth drafting behind each of these paths of tokens [n, W]: what has to follow, as `forced` spells it, or else what may.

        Nothing is behind a path that the grammar forbids, or that ends the output.
        """
        words = np.zeros((len(paths), len(self._end_bits)), dtype=np.int32)
        matcher, at = self._matcher, 0
        path: tuple[int, ...] = ()
        for row in sorted(range(len(paths)), key=paths.__getitem__):  # paths that begin alike stand side by side
            shared = min(at, _common(path, paths[row]))
            matcher.rollback(at - shared)
            path = paths[row]
            at = shared + matcher.try_consume_tokens(list(path[shared:]))
            if at == len(path) and not self._at_end:
                self._fill_forced(words[row])
        matcher.rollback(at)
        self._compiled.spent |= self.broken
        return words

    def _fill_forced(self, row: Words) -> None:
        """Fill in what has to follow here, or else what may."""
        forced = self._matcher.compute_ff_tokens()
        if forced:
            row[forced[0] >> 5] = np.uint32(1 << (forced[0] & 31)).view(np.int32)
        else:
            self._fill(row)

    def masks(self, tokens: Sequence[int], parents: Sequence[int]) -> Words:
        """What may be picked behind every token of a draft [n, W]: of a token that may not be picked itself, or ends the text, anything.

        Nothing may, in all that has not been walked to, if the grammar gets too complex on the way.
        """
        words = np.full((len(tokens), len(self._end_bits)), -1, dtype=np.int32)
        if not self._walk(tokens, parents, words):
            self._begin_anew()
            words[:] = 0
            if not self._walk([tokens[0]], [-1], words[:1]):
                words[0] = 0
        if not words[0].any():
            self.problem = f"{self._dead_end} behind {len(self._tokens)} tokens of output"
        return words

    def _walk(self, tokens: Sequence[int], parents: Sequence[int], words: Words) -> bool:
        """Fill in the masks, depth first, and go back to the root. False if the matcher fails on the way."""
        matcher, depth, below = self._matcher, 0, _children(parents)
        left = [(0, 0)]
        while left:
            node, level = left.pop()
            if level:
                matcher.rollback(depth - level + 1)
                matcher.consume_token(tokens[node])
            depth = level
            if level and self._at_end:
                continue  # the text is complete: what is picked behind it goes nowhere
            self._fill(words[node])
            if matcher.is_error():
                return False
            left += ((child, level + 1) for child in below[node] if self._goes_on(words[node], tokens[child]))
        matcher.rollback(depth)
        return not matcher.is_error()

    def _goes_on(self, allowed: Words, token: int) -> bool:
        return token not in self._ends and _has(allowed, token)

    def _fill(self, row: Words) -> None:
        """Fill in what may follow here."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        may_end = _has(row, self._compiled.tokens.end)
        row &= self._text_bits
        if may_end:
            row |= self._end_bits

    def _bits(self, tokens: Collection[int]) -> Words:
        """The words [W] of these tokens."""
        bits = np.zeros((self._compiled.tokens.count + 31) // 32, dtype=np.uint32)
        for token in tokens:
            bits[token >> 5] |= np.uint32(1 << (token & 31))
        return bits.view(np.int32)

    def _begin_anew(self) -> None:
        """Go to where the output stands with an automaton of its own: the shared one may have learnt as much as it may."""
        self._compiled.spent = True
        self._matcher = self._compiled.fresh()
        self._matcher.consume_tokens(self._tokens)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two paths begin with in common."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _has(words: Words, token: int) -> bool:
    return bool(words[token >> 5] >> (token & 31) & 1)


def _children(parents: Sequence[int]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)
    return children
