"""What a leader has its followers do, and how it travels: as int64 numbers, of which the first says what it is.

Forward    the turn, and of each row five sizes (Q, pages, logits wanted, L, E), then tokens, positions, pages, logits_at and bits of
           the tail mask
Move       source slots, then as many target slots
Trial      the turn
Leave      nothing

A turn is the number of ranks, the rows of each, and the demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self, TypeAlias

import numpy as np

from specsplit.model.pages.batch import Ints, Row
from specsplit.model.pages.tables import Pages, PageTables, RowPages, Slots
from specsplit.ranks.demand import EAGER, NUMBERS, Demand

_WORD: Final = 64
"""Bits of a number."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One forward on every rank; see `CausalLM.turn`."""

    rows: Sequence[int]
    """Tokens of each rank, by rank. A target that takes no turns with others counts as the only rank."""
    demand: Demand = EAGER
    """The captured forward that the turn replays."""

    @property
    def numbers(self) -> list[int]:
        """The turn as numbers: how many ranks there are, the rows of each, and the demand."""
        return [len(self.rows), *self.rows, *self.demand.numbers]

    @classmethod
    def taken(cls, numbers: Ints) -> tuple[Self, Ints]:
        """Read what `numbers` wrote -> the turn, and the numbers behind it."""
        demand = 1 + int(numbers[0])
        behind = demand + NUMBERS
        return cls(numbers[1:demand].tolist(), Demand.of(numbers[demand:behind].tolist())), numbers[behind:]


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """Run rows through the model; none: take part in the turn without any."""

    kind: ClassVar[int] = 1
    rows: Sequence[Row]
    turn: Turn

    def packed(self, tables: PageTables) -> Ints:
        """`tables` are the page tables that the rows name. Only the leader has them, so the pages of every row travel."""
        parts = [np.array([self.kind, *self.turn.numbers])]
        for row in self.rows:
            parts += _packed_row(row, tables.listed(row.pages))
        return np.concatenate(parts, dtype=np.int64)

    @classmethod
    def unpacked(cls, numbers: Ints) -> Forward:
        """Read what `packed` wrote, without its first number. The rows name no table."""
        turn, rows = Turn.taken(numbers)
        return cls(list(_unpacked_rows(rows)), turn)


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Copy the KV of slots source [n] to slots target [n]; see `ModelRunner.move`."""

    kind: ClassVar[int] = 2
    source: Slots
    target: Slots

    def packed(self) -> Ints:
        return np.concatenate(([self.kind], self.source, self.target), dtype=np.int64)

    @classmethod
    def unpacked(cls, numbers: Ints) -> Move:
        """Read what `packed` wrote, without its first number."""
        return cls(*numbers.reshape(2, -1))


@dataclass(frozen=True, slots=True)
class Trial:
    """Run one token that stands for none; see `CausalLM.trial`."""

    kind: ClassVar[int] = 3
    turn: Turn

    def packed(self) -> Ints:
        return np.array([self.kind, *self.turn.numbers])

    @classmethod
    def unpacked(cls, numbers: Ints) -> Self:
        """Read what `packed` wrote, without its first number."""
        turn, _ = Turn.taken(numbers)
        return cls(turn)


@dataclass(frozen=True, slots=True)
class Leave:
    """The leader needs its followers no more."""

    kind: ClassVar[int] = 4

    def packed(self) -> Ints:
        return np.array([self.kind])


Command: TypeAlias = Forward | Move | Trial | Leave


def unpacked(numbers: Ints) -> Command:
    """Read a command from the numbers that its `packed` made."""
    kind, rest = int(numbers[0]), numbers[1:]
    match kind:
        case Forward.kind:
            return Forward.unpacked(rest)
        case Move.kind:
            return Move.unpacked(rest)
        case Trial.kind:
            return Trial.unpacked(rest)
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
