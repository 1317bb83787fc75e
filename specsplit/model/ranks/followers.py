"""What the leader of a split model has its followers do, so that they take part in all that it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from specsplit.model.pages.batch import Ints, Row
from specsplit.model.pages.tables import PageTables, Slots
from specsplit.model.ranks.commands import Forward, Move, Trial, Turn
from specsplit.model.ranks.tensor_group import TensorGroup


class Followers:
    """The followers of one leader.

    All that may fail by itself (packing rows, say) comes before they are told; what fails after that ends the group.
    """

    def __init__(self, group: TensorGroup, tables: PageTables) -> None:
        """`tables`: those that rows name."""
        self._group: Final = group
        self._tables: Final = tables
        self.due: Turn | None = None
        """The turn that is on, while they have not been told of it."""

    @contextmanager
    def turn(self, turn: Turn) -> Iterator[None]:
        """One forward on every rank. If it is over, or fails, before they are told, they take part without rows. Raises RankLost."""
        self.due = turn
        try:
            yield
        finally:
            if self.due is not None:
                self._tell(Forward((), self.due).packed(self._tables))

    @contextmanager
    def forward(self, rows: Sequence[Row], turn: Turn) -> Iterator[None]:
        """In here all run these rows, in the turn that is on. Raises RankLost."""
        self._tell(Forward(rows, turn).packed(self._tables))
        with self._group.together():
            yield

    @contextmanager
    def trial(self, turn: Turn) -> Iterator[None]:
        """In here all make a trial, in the turn that is on. Raises RankLost."""
        self._tell(Trial(turn).packed())
        with self._group.together():
            yield

    def move(self, source: Slots, target: Slots) -> None:
        """All copy KV from slots to others. Raises RankLost."""
        self._tell(Move(source, target).packed())

    def _tell(self, command: Ints) -> None:
        self.due = None
        self._group.tell(command)
