"""What a leader has its followers do, and how it travels: as int64 numbers, of which the first says what it is.

Forward    the demand, and of each row five sizes (Q, pages, logits wanted, L, E), then tokens, positions, pages, logits_at and bits of
           the tail mask
Move       source slots, then as many target slots
Trial      nothing
Leave      nothing
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

import numpy as np

from specsplit.model.batch import Ints, Row
from specsplit.model.page_tables import Pages, PageTables, RowPages, Slots
from specsplit.ranks.demand import EAGER, NUMBERS, Demand

_WORD: Final = 64
"""Bits of a number."""


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """Run rows through the model."""

    kind: ClassVar[int] = 1
    rows: Sequence[Row]
    demand: Demand = EAGER
    """Which captured forward to run them in."""

    def packed(self, tables: PageTables) -> Ints:
        """`tables`: those that the rows name. Only the leader has them, so the pages of every row travel."""
        parts = [np.array([self.kind, *self.demand.numbers])]
        for row in self.rows:
            parts += _packed_row(row, tables.listed(row.pages))
        return np.concatenate(parts, dtype=np.int64)

    @classmethod
    def unpacked(cls, numbers: Ints) -> Forward:
        """What `packed` wrote, but its first number. The rows name no table."""
        return cls(list(_unpacked_rows(numbers[NUMBERS:])), Demand.of(numbers[:NUMBERS].tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Copy the KV of slots source [n] to slots target [n]; see `ModelRunner.move`."""

    kind: ClassVar[int] = 2
    source: Slots
    target: Slots

    def packed(self) -> Ints:
        """As numbers."""
        return np.concatenate(([self.kind], self.source, self.target), dtype=np.int64)

    @classmethod
    def unpacked(cls, numbers: Ints) -> Move:
        """What `packed` wrote, but its first number."""
        return cls(*numbers.reshape(2, -1))


@dataclass(frozen=True, slots=True)
class Trial:
    """Run one token that stands for none; see `CausalLM.trial`."""

    kind: ClassVar[int] = 3

    def packed(self) -> Ints:
        """As numbers."""
        return np.array([self.kind])


@dataclass(frozen=True, slots=True)
class Leave:
    """The leader needs its followers no more."""

    kind: ClassVar[int] = 4

    def packed(self) -> Ints:
        """As numbers."""
        return np.array([self.kind])


Command: TypeAlias = Forward | Move | Trial | Leave


def unpacked(numbers: Ints) -> Command:
    """The command that was packed."""
    kind, rest = int(numbers[0]), numbers[1:]
    match kind:
        case Forward.kind:
            return Forward.unpacked(rest)
        case Move.kind:
            return Move.unpacked(rest)
        case Trial.kind:
            return Trial()
        case Leave.kind:
            return Leave()
        case _:
            raise ValueError(f"a command of kind {kind}, expected 1 to 4: leader and follower differ in version")


def _packed_row(row: Row, pages: Pages) -> list[Ints]:
    bits = np.packbits(row.tail_mask)
    mask = np.pad(bits, (0, -len(bits) % 8)).view(np.int64)
    listed = [np.asarray(each, dtype=np.int64) for each in (row.tokens, row.positions, pages, row.logits_at)]
    sizes = [row.num_tokens, len(pages), len(row.logits_at), row.pages.length, row.tail_mask.shape[1]]
    return [np.array(sizes), *listed, mask]


def _unpacked_rows(numbers: Ints) -> Iterator[Row]:
    at = 0

    def take(count: int) -> Ints:
        nonlocal at
        at += count
        return numbers[at - count : at]

    while at < len(numbers):
        queries, num_pages, wanted, length, tail = take(5).tolist()
        tokens, positions = take(queries), take(queries)
        pages, logits_at = RowPages.alone(take(num_pages), length), take(wanted).tolist()
        bits = take(-(-queries * tail // _WORD)).copy().view(np.uint8)
        mask = np.unpackbits(bits, count=queries * tail).view(np.bool_).reshape(queries, tail)
        yield Row(tokens, positions, pages, mask, logits_at)
