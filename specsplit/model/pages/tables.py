"""Which page holds which tokens of which sequence: a matrix on the host, and the same on the device where a model runs.

    table   one sequence's row of the matrix: pages of its tokens, from local index 0, `page_size` tokens each
    slot    page * page_size + local index % page_size

Rows of a forward name a table and a length, so a step ships what changed of the tables, and no list of the slots that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.pages.geometry import Span
from specsplit.model.pages.windows import WindowPages
from specsplit.model.tensors.transfer import UploadArray, on_device
from specsplit.values.lean import lean

Pages = NDArray[np.int32]
Slots = NDArray[np.int64]

_MIN_TABLES: Final = 4
_MIN_WIDTH: Final = 16
_MOST_CHANGES: Final = 4096
"""Writes that a copy of the tables is told one by one."""


@lean(eq=False)
class RowPages:
    """Where the KV lies that a row of a forward sees. Its new tokens are the last of it."""

    table: int
    """Number of the table."""
    length: int
    """Tokens, from local index 0."""
    own: Slots | None = None
    """[n] pages of the row alone, in the place of the last n pages of the table: scratch, or a drafter's nodes. None: there are none."""
    unheld: int = 0
    """Pages at the front of the table that stand for none: no new token of the row sees their tokens in any layer."""

    @classmethod
    def alone(cls, pages: Slots, length: int) -> RowPages:
        """Pages that are in no table, for all of `length` tokens."""
        return cls(0, length, pages)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"a row of {self.length} tokens, expected at least one")


class TablesCopy:
    """Page tables on a device of its own memory."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._tensor: Tensor | None = None
        self._changed: list[tuple[int, int, int]] = []
        """(table, start, stop) of what it lacks."""

    def note(self, table: int, start: int, stop: int) -> None:
        """Pages number start <= i < stop of a table were written on the host."""
        self._changed.append((table, start, stop))
        if len(self._changed) > _MOST_CHANGES:  # nobody has asked for long: who asks next gets all of it
            self._tensor = None
            self._changed.clear()

    def follow(self, matrix: Pages, upload: UploadArray) -> Callable[[], Tensor]:
        """Put what was written -> to be called once that is under way: int32, equal to the host's `matrix` as it is now.

        All of the matrix is copied, by itself, if it has grown, or if what was put the last time was never written.
        """
        tensor, changed = self._tensor, self._changed
        self._changed = []
        if tensor is None or tensor.shape != matrix.shape:
            tensor = self._tensor = on_device(matrix.copy(), self._device)
        elif changed:
            width = matrix.shape[1]
            at = np.concatenate([np.arange(t * width + start, t * width + stop) for t, start, stop in changed])
            at = np.unique(at)  # where an index comes twice, which value a device writes last is open
            self._tensor = None  # until all of it is written
            return partial(self._write, tensor, upload(np.stack((at, matrix.reshape(-1).take(at)))))
        return lambda: tensor

    def _write(self, tensor: Tensor, written: Tensor) -> Tensor:
        tensor.view(-1).index_copy_(0, written[0], written[1].to(torch.int32))
        self._tensor = tensor
        return tensor


class PageLists(Protocol):
    """Where rows find the pages of what they see."""

    @property
    def page_size(self) -> int: ...

    def listed(self, row: RowPages) -> Pages:
        """Pages [n] of a row, on the host."""
        ...


class PageTables:
    """The tables of one pool. Changed on the host by whoever plans forwards, and not while one runs."""

    def __init__(self, page_size: int, windows: WindowPages | None = None) -> None:
        self.page_size: Final = page_size
        self.windows: Final = windows
        """Where layers that see a window keep the tokens of pages; None: where the others do."""
        self._matrix: Pages = np.zeros((_MIN_TABLES, _MIN_WIDTH), dtype=np.int32)
        self.slots: Slots = np.zeros((_MIN_TABLES, _MIN_WIDTH * page_size), dtype=np.int64)
        """[tables, tokens] the slots of all tables, for who computes on the host; only `write` changes them."""
        self._free = list(range(_MIN_TABLES - 1, -1, -1))
        self._copy: TablesCopy | None = None

    def open(self) -> int:
        """Number of a table that nobody has."""
        if not self._free:
            count = len(self._matrix)
            self._grow(2 * count, self._matrix.shape[1])
            self._free = list(range(2 * count - 1, count - 1, -1))
        return self._free.pop()

    def close(self, table: int) -> None:
        """Nobody has this table any more."""
        self._free.append(table)

    def write(self, table: int, start: int, pages: Slots) -> None:
        """Let pages [n] be number start, start + 1 ... of a table."""
        stop = start + len(pages)
        if stop > self._matrix.shape[1]:
            self._grow(len(self._matrix), max(stop, 2 * self._matrix.shape[1]))
        self._matrix[table, start:stop] = pages
        self.slots[table, start * self.page_size : stop * self.page_size] = self.slots_of(pages)
        if self._copy is not None:
            self._copy.note(table, start, stop)

    def read(self, table: int, start: int, stop: int) -> Pages:
        """Pages number start <= i < stop of a table: a view, to be read before the next change."""
        return self._matrix[table, start:stop]

    def within(self, span: Span) -> PageLists:
        """The tables as layers have them that see a span."""
        return self if self.windows is None or span.size is None else WindowTables(self, self.windows)

    def listed(self, row: RowPages) -> Pages:
        """Pages [n] of a row, on the host."""
        count = -(-row.length // self.page_size)
        if row.own is None:
            return self._matrix[row.table, :count]
        held = self._matrix[row.table, : count - len(row.own)]
        return np.concatenate((held, row.own), dtype=np.int32, casting="same_kind")

    def last_slots(self, row: RowPages, count: int) -> Slots:
        """Slots [count] of the last tokens that a row sees: its new ones."""
        first, size = row.length - count, self.page_size
        if row.own is None:
            return self.slots[row.table, first : row.length]
        within = first % size
        pages = self.listed(row)[first // size :].astype(np.int64)
        return self.slots_of(pages)[within : within + count]

    def slots_of(self, pages: Slots) -> Slots:
        """All slots of pages [n], int64 [n * page_size]."""
        return np.add.outer(pages * self.page_size, np.arange(self.page_size)).reshape(-1)

    def on(self, device: torch.device) -> Tensor:
        """The pages of all tables, int32 [tables, pages], as they are now, on a device, which is the same every time."""
        return self.follow(device, partial(on_device, device=device))()

    def follow(self, device: torch.device, upload: UploadArray) -> Callable[[], Tensor]:
        """Put what a device lacks of all tables -> to be called once that is under way: see `on`.

        Where it is never called, since a step failed, all of the tables are copied the next time.
        """
        if self._copy is None:
            self._copy = TablesCopy(device)
        return self._copy.follow(self._matrix, upload)

    def _grow(self, count: int, width: int) -> None:
        more = count - self._matrix.shape[0], width - self._matrix.shape[1]
        self._matrix = np.pad(self._matrix, ((0, more[0]), (0, more[1])))
        self.slots = np.pad(self.slots, ((0, more[0]), (0, more[1] * self.page_size)))


class WindowTables:
    """The tables of a pool as layers have them that see a window: window pages in the place of pages."""

    def __init__(self, tables: PageTables, windows: WindowPages) -> None:
        self._tables: Final = tables
        self._windows: Final = windows

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._tables.page_size

    def listed(self, row: RowPages) -> Pages:
        """Window pages [n] of a row, on the host; the spare one for pages that have none."""
        return self._windows.pages_of(self._tables.listed(row)).astype(np.int32)
