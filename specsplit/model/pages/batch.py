"""One forward's worth of work: ragged rows of prefill chunks and token trees, packed end to end.

    T   tokens in the batch            Q   new tokens of one row
    L   tokens a row can see           E   the last of those L, which not every token of the row sees; Q <= E

The worked example as a row: `cat` (position 1) and nodes 1 sat, 3 on, 2 is, 5 the, behind the one committed token `the`:

    parents = [-1, 0, 1, 0, 2]         cat  sat  on   is   the
    tail_mask               cat         T    F    F    F    F
                            sat         T    T    F    F    F
                            on          T    T    T    F    F
                            is          T    F    F    T    F
                            the         T    T    T    F    T
    positions = [1, 2, 3, 2, 4]        pages = those of local indices 0..5 (L = 6, E = 5)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specsplit.model.pages.geometry import ALL, Span
from specsplit.model.pages.tables import RowPages
from specsplit.values.lean import lean

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


_SMALL: Final = 16
"""The shapes of trees of so many tokens at most are kept: the same ones come again and again."""


def causal_mask(length: int) -> Mask:
    """Bool [length, length]: token i sees tokens 0..i."""
    return np.tri(length, dtype=np.bool_)


def ancestor_mask(parents: Sequence[int]) -> Mask:
    """Bool [n, n]: node i sees itself and its ancestors. parents[i] < i is the parent's index, -1 that of a node without one."""
    # Rows as bits of Python ints: one OR per node is far cheaper than one numpy row operation per node.
    bits: list[int] = []
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise ValueError(f"parents[{index}] is {parent}, expected an earlier index or -1")
        bits.append((bits[parent] if parent >= 0 else 0) | 1 << index)
    width = (len(bits) + 7) // 8
    packed = np.frombuffer(b"".join(row.to_bytes(width, "little") for row in bits), dtype=np.uint8)
    unpacked = np.unpackbits(packed.reshape(len(bits), width), axis=1, count=len(bits), bitorder="little")
    return unpacked.view(np.bool_)


def _shape(parents: Sequence[int]) -> tuple[Mask, Ints]:
    """The mask of a tree, and the depth of each node of it."""
    mask = ancestor_mask(parents)
    depths: Ints = mask.sum(axis=1, dtype=np.int64) - 1
    mask.flags.writeable = depths.flags.writeable = False
    return mask, depths


_known_shape = lru_cache(4096)(_shape)
"""Remembers the latest, which take some megabytes at most."""


@lean(eq=False)
class Row:
    """New tokens of one sequence in one forward. Who runs one adds what else it knows of them in a subclass."""

    tokens: ArrayLike
    """[Q] vocabulary ids, Q >= 1."""
    positions: Ints
    """[Q] absolute positions; two nodes of one depth share theirs."""
    pages: RowPages
    """Pages of all L tokens that any of the new ones sees: the first L - E are seen by all of them, the last Q are the new ones."""
    tail_mask: Mask
    """[Q, E] which of the last E tokens each new one sees, itself included."""
    logits_at: Sequence[int] = ()
    """[n] indices (< Q) of the tokens whose logits are wanted; may be empty."""
    stretch: bool = False
    """True: nobody goes on from within it, whatever logits are wanted."""
    adapter: int = 0
    """Which of the model's adapters computes it: the k-th of `ModelInfo.adapters`, from 1; 0: the base."""

    def __post_init__(self) -> None:
        queries, tail = self.tail_mask.shape
        if not 1 <= queries == len(self.positions) <= tail <= self.pages.length:
            sizes = f"{len(self.positions)} positions, {self.pages.length} tokens to see"
            raise ValueError(f"a row with {sizes} and a tail mask of {queries} x {tail}")

    @property
    def num_tokens(self) -> int:
        """Q: the new tokens of the row."""
        return len(self.positions)

    @classmethod
    def chunk(cls, tokens: Sequence[int] | Ints, pages: RowPages, logits_at: Sequence[int] = (), **own: Any) -> Self:
        """A stretch of committed tokens; `pages` are those of the sequence up to the chunk's end, `own` the fields of a subclass."""
        count, length = len(tokens), pages.length
        positions = np.arange(length - count, length, dtype=np.int64)
        return cls(tokens, positions, pages, causal_mask(count), logits_at, **own)

    @classmethod
    def tree(
        cls,
        tokens: Sequence[int] | Ints,
        parents: Sequence[int],
        pages: RowPages,
        logits_at: Sequence[int] | None = None,
        **own: Any,
    ) -> Self:
        """A root (index 0, parent -1) and nodes below it, logits wanted at all of them unless `logits_at` says less.

        `pages` are those of L - n committed tokens, whose KV is there, and of the n tokens of the tree; `own` are the fields of a subclass.
        """
        count, length = len(tokens), pages.length
        mask, depths = _known_shape(tuple(parents)) if count <= _SMALL else _shape(parents)
        wanted = range(count) if logits_at is None else logits_at
        return cls(tokens, depths + (length - count), pages, mask, wanted, **own)


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What each new token of a row sees of it within a span, as numbers and a mask of the tail alone."""

    before: int
    """Tokens before the tail: L - E."""
    wanted: Ints | None
    """[Q] of which each new token sees the last so many; None: all of them."""
    tail: Mask
    """[Q, E]"""

    @classmethod
    def of(cls, row: Row, span: Span) -> Sight:
        """A token counts along its own path: those of the tail that it sees come behind each other on it, and what lies before the tail
        comes before them."""
        before = row.pages.length - row.tail_mask.shape[1]
        if span == ALL:
            return cls(before, None, row.tail_mask)
        onward = np.cumsum(row.tail_mask[:, ::-1], axis=1)[:, ::-1]  # tokens of the path from here to its end
        reach = span.reach(row.positions)
        wanted = np.clip(reach - onward[:, 0], 0, before)
        return cls(before, wanted, row.tail_mask & (onward <= reach[:, None]))

    @property
    def first(self) -> int:
        """The first local index that any new token sees."""
        if self.wanted is None:
            return 0
        wanted = int(self.wanted.max())
        return self.before - wanted if wanted else self.before + int(self.tail.any(axis=0).argmax())

    @property
    def shared(self) -> int:
        """The local index from which on all new tokens see all tokens before the tail."""
        return 0 if self.wanted is None else self.before - int(self.wanted.min())

    def shown(self, start: int, stop: int) -> Mask:
        """Bool [Q, stop - start]: which of the tokens start <= i < stop, by their local indices, each new one sees."""
        front = max(0, min(stop, self.before) - start)
        shown = np.ones((len(self.tail), stop - start), dtype=np.bool_)
        shown[:, front:] = self.tail[:, max(0, start - self.before) : max(0, stop - self.before)]
        if front and self.wanted is not None:
            shown[:, :front] = np.arange(start, start + front) >= (self.before - self.wanted)[:, None]
        return shown


def visible(row: Row, span: Span) -> tuple[int, Mask]:
    """What of a row is seen within a span: the first local index that any new token sees -> and, bool [Q, L - first], which see which."""
    sight = Sight.of(row, span)
    return sight.first, sight.shown(sight.first, row.pages.length)
