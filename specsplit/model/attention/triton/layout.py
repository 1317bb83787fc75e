"""What a forward's rows say to the kernels: words of 32 bits in one piece, which is all of a plan.

    tiles   by size of tile: the row of each, and the token that it begins with; -1 for a tile that there is none of
    rows    the fields of each row
    low     by span and token, the first token before the tail of its row that it sees
    more    the pages that are of one row alone, and for each span the masks of tails, a bit for each of its tokens

A row in order has no tail: its tokens see what comes before them and themselves, as far as their span reaches.

    T   tokens of all rows        B   rows        Q, L, E   as in `specsplit.model.pages.batch`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsplit.model.pages.batch import Ints, Mask, Row, Sight, causal_mask
from specsplit.model.pages.geometry import ALL, Span

Words = NDArray[np.int32]

_SMALL: Final = 64
"""What is known of the tails of rows of so many tokens at most is kept: the same ones come again and again."""


class Field(IntEnum):
    """What a row says, one word each."""

    START = 0
    """The first token."""
    STOP = auto()
    """The one behind the last."""
    LENGTH = auto()
    """L"""
    BEFORE = auto()
    """Tokens before the tail; in a row in order, before the new ones."""
    TABLE = auto()
    """Number of its page table."""
    HELD = auto()
    """Pages that are in the table; what comes behind them is in the row's own list."""
    OWN = auto()
    """Where in the words that list is."""
    MASK = auto()
    """Where its masks are."""
    WORDS = auto()
    """Words of mask for each token, 0 in a row in order."""


FIELDS: Final = len(Field)


class Tail(NamedTuple):
    """The tokens at a row's end of which not every new one sees all."""

    ordered: bool
    """Whether the new tokens are the last ones, and each sees what comes before it."""
    bits: Words
    """[Q, words] bit i % 32 of word i // 32: whether a new token sees token i of the tail."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many words of each kind there are."""

    tiles: Mapping[int, int]
    """By tokens of a tile, how many tiles of this size there are at most."""
    rows: int
    tokens: int
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], rows: int, tokens: int, spans: tuple[Span, ...]) -> Shape:
        """For up to so many rows of so many tokens in all, in tiles of each of these `sizes`."""
        return cls({size: min(tokens, tokens // size + rows) for size in sizes}, rows, tokens, spans)

    @classmethod
    def even(cls, sizes: Sequence[int], rows: int, tokens: int, spans: tuple[Span, ...]) -> Shape:
        """For so many rows, each of as many of so many tokens in all: there is no tile too many."""
        return cls({size: rows * -(-tokens // rows // size) for size in sizes}, rows, tokens, spans)

    def tiles_at(self, size: int) -> int:
        """Where the tiles of a size begin."""
        return 2 * sum(count for other, count in self.tiles.items() if other < size)

    @property
    def rows_at(self) -> int:
        return 2 * sum(self.tiles.values())

    @property
    def low_at(self) -> int:
        return self.rows_at + FIELDS * self.rows

    @property
    def more_at(self) -> int:
        return self.low_at + len(self.spans) * self.tokens


def lay_out(rows: Sequence[Row], shape: Shape, page_size: int) -> tuple[Words, list[Words]]:
    """Lay rows (at least one) out, of as many tokens as `shape` has -> what comes before `more`, and the parts of that."""
    words = np.zeros(shape.more_at, dtype=np.int32)
    counts = np.array([row.num_tokens for row in rows])
    starts = counts.cumsum() - counts
    for size, most in shape.tiles.items():
        words[shape.tiles_at(size) :][: 2 * most] = _tiles(starts, counts, size, most)
    more: list[Words] = []
    place = shape.more_at
    fields: list[tuple[int, ...]] = []
    low = words[shape.low_at :].reshape(len(shape.spans), shape.tokens)
    for start, row in zip(starts.tolist(), rows, strict=True):
        stop, own = start + row.num_tokens, row.pages.own
        tail = _tail_of(row.tail_mask)
        masks = _masks(row, tail, shape.spans, low[:, start:stop])
        num_own, num_masks = 0 if own is None else len(own), sum(map(len, masks))
        length, held = row.pages.length, pages_held(row, page_size)
        before = length - row.tail_mask.shape[1]
        fields.append((start, stop, length, before, row.pages.table, held, place, place + num_own, tail.bits.shape[1]))
        more += masks if own is None else [own.astype(np.int32), *masks]
        place += num_own + num_masks
    words[shape.rows_at :][: FIELDS * len(rows)] = np.array(fields, dtype=np.int32).reshape(-1)
    return words, more


def pages_held(row: Row, page_size: int) -> int:
    """Count the pages of a row that are in its table."""
    own = row.pages.own
    return -(-row.pages.length // page_size) - (0 if own is None else len(own))


def _masks(row: Row, tail: Tail, spans: Sequence[Span], low: Words) -> list[Words]:
    """The masks of a row's tail, by span, none of a row in order. Writes `low` [spans, Q], which is 0 before."""
    masks: list[Words] = []
    for number, span in enumerate(spans):
        if tail.ordered:
            if span != ALL:
                own = np.arange(row.pages.length - row.num_tokens, row.pages.length)
                low[number] = np.maximum(0, own + 1 - span.reach(row.positions))
        elif span == ALL:
            masks.append(tail.bits.reshape(-1))
        else:
            sight = Sight.of(row, span)
            low[number] = sight.before - sight.wanted  # pyright: ignore[reportOperatorIssue] (there is a bound)
            masks.append(packed(sight.tail).reshape(-1))
    return masks


def _tiles(starts: Ints, counts: Ints, size: int, most: int) -> Words:
    """The row of each tile and its first token [2 * most]."""
    each = -(-counts // size)
    rows = np.arange(len(counts)).repeat(each)
    number = np.arange(len(rows)) - (each.cumsum() - each).take(rows)
    tiles = np.full((most, 2), -1, dtype=np.int32)
    tiles[: len(rows), 0] = rows
    tiles[: len(rows), 1] = starts.take(rows) + number * size
    return tiles.reshape(-1)


def _tail_of(mask: Mask) -> Tail:
    if mask.size == 1 and mask[0, 0]:
        return _LONE
    if max(mask.shape) <= _SMALL:
        return _known_tail(mask.shape, mask.tobytes())
    return _tail(mask)


def _tail(mask: Mask) -> Tail:
    queries, tokens = mask.shape
    ordered = queries == tokens and bool((mask == causal_mask(queries)).all())
    return Tail(ordered, np.zeros((queries, 0), dtype=np.int32) if ordered else packed(mask))


@lru_cache(4096)
def _known_tail(shape: tuple[int, int], raw: bytes) -> Tail:
    return _tail(np.frombuffer(raw, dtype=np.bool_).reshape(shape))


def packed(mask: Mask) -> Words:
    """Bool [Q, E] -> [Q, words], see `Tail`."""
    queries, tokens = mask.shape
    width = -(-tokens // 32)
    whole = np.zeros((queries, 32 * width), dtype=np.bool_)
    whole[:, :tokens] = mask
    return np.packbits(whole, axis=1, bitorder="little").view("<i4").astype(np.int32, copy=False)


_LONE: Final = Tail(True, np.zeros((1, 0), dtype=np.int32))
"""That of one new token."""
