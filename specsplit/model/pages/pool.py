"""Who holds which KV slot: a pool of equal pages, and the page table of one sequence.

A slot holds the keys and values of one token; page p covers slots p * page_size .. (p + 1) * page_size - 1.
Where every layer sees a window or a chunk of the tokens, a table gives back the pages that no token to come sees, and has the spare page
in their place. Where only some layers do, the pool has window pages for those: see `specsplit.model.pages.windows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from specsplit.errors import Exhausted
from specsplit.model.pages.geometry import ALL, Span, first_seen
from specsplit.model.pages.tables import PageTables, RowPages, Slots
from specsplit.model.pages.windows import OutOfWindowPages, WindowPages


class OutOfPages(Exhausted):
    """The pool holds fewer free pages than were asked for; nothing was taken."""


class PagePool:
    """Hands out pages by number, and counts who holds each. Not thread-safe: the engine thread owns it."""

    def __init__(
        self, num_pages: int, page_size: int, spans: Sequence[Span] = (ALL,), windows: WindowPages | None = None
    ) -> None:
        """`spans`: those of the layers whose KV is in the slots. `windows`: where those with a bound have it; None: in the slots too."""
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"num_pages is {num_pages} and page_size is {page_size}, expected at least 1 each")
        self.page_size: Final = page_size
        self.total_pages: Final = num_pages
        self.spare_page: Final = num_pages
        """A page of the KV that is never handed out: it stands in tables for pages that are not held."""
        self._spans: Final = spans
        sizes = [span.size for span in spans]
        self.window: Final = None if None in sizes else max(size for size in sizes if size is not None)
        """Tokens that a token sees at most, in whichever layer; None: all before it."""
        self.windows: Final = windows
        self.tables: Final = PageTables(page_size, windows)
        self._free_stack: Slots = np.arange(num_pages - 1, -1, -1, dtype=np.int64)
        self.free_pages = num_pages
        """Pages that `allocate` can still hand out."""
        self._holders = np.zeros(num_pages, dtype=np.int32)

    @property
    def num_slots(self) -> int:
        """Slots in all, free or not."""
        return self.total_pages * self.page_size

    @property
    def most_seen(self) -> int:
        """Tokens of a text that can be kept in all layers at once."""
        pages = self.total_pages if self.windows is None else min(self.total_pages, self.windows.total_pages)
        return pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Pages that a sequence of `num_tokens` occupies."""
        return -(-num_tokens // self.page_size)

    def first_seen(self, position: int) -> int:
        """Position of the first token that is seen, in any layer, by a token at this position of its text, or by one behind it."""
        return first_seen(self._spans, position)

    def allocate(self, num_pages: int) -> Slots:
        """Take pages: ids [num_pages]. Raises OutOfPages (and takes none) if there are not that many."""
        if num_pages > self.free_pages:
            raise OutOfPages(f"{num_pages} KV pages wanted, {self.free_pages} of {self.total_pages} free")
        self.free_pages -= num_pages
        # The stack is read downwards so that a fresh pool hands out ascending, adjacent pages.
        pages = self._free_stack[self.free_pages : self.free_pages + num_pages][::-1].copy()
        self._holders[pages] = 1
        return pages

    def share(self, pages: Slots) -> None:
        """Let one more hold pages. Raises ValueError (and changes nothing) if one of them is not out."""
        self._check(pages, "shared")
        self._holders[pages] += 1

    def holders(self, page: int) -> int:
        """How many hold a page; 0 for a free one."""
        return int(self._holders[page])

    def release(self, pages: Slots) -> None:
        """One holder gives pages back; those without another are free. Raises ValueError (and takes none back) if one is not out."""
        self._check(pages, "released")
        self._holders[pages] -= 1
        freed = pages[self._holders[pages] == 0]
        if self.windows is not None:
            self.windows.forget(freed)
        self._free_stack[self.free_pages : self.free_pages + len(freed)] = freed[::-1]
        self.free_pages += len(freed)

    def _check(self, pages: Slots, what: str) -> None:
        if not self._holders[pages].all() or len(np.unique(pages)) != len(pages):
            raise ValueError(f"pages {pages.tolist()} {what} twice or never allocated")


class PageTable:
    """The pages of one sequence, in the pool's tables while there are any. Local indices are 0, 1, 2 ... of that sequence."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._number = 0
        self._first = 0
        """Pages, from the front, that it does not hold."""
        self._count = 0
        """Pages in all, these included."""
        self._seen = range(0)
        """Which of them it holds the window pages of."""

    @property
    def number(self) -> int:
        """Its number in the pool's tables, while it has pages."""
        return self._number

    def __len__(self) -> int:
        """Local indices: a whole number of pages. Those from `first` on have a slot."""
        return self._count * self._pool.page_size

    @property
    def first(self) -> int:
        """The first local index that has a slot; 0 in an empty table."""
        return self._first * self._pool.page_size

    @property
    def first_in_window(self) -> int:
        """The first local index that is kept in all layers, those that see a window too."""
        return self.first if self._pool.windows is None else self._seen.start * self._pool.page_size

    def see(self, position: int, stop: int) -> None:
        """Hold the window pages of what tokens at local indices position <= i < stop see, themselves included, and no others.

        Tokens without a slot are left out. Raises OutOfWindowPages, and changes nothing, if there are too few.
        """
        windows = self._pool.windows
        if windows is not None:
            stop = min(self._pool.pages_for(stop), self._count)
            self._see(windows, range(min(windows.first_seen(position) // self._pool.page_size, stop), stop))

    def reserve(self, length: int) -> None:
        """Make sure that local indices below `length` have slots. Raises OutOfPages and changes nothing if they cannot."""
        if length > len(self):
            self.adopt(self._pool.allocate(self._pool.pages_for(length - len(self))))

    def adopt(self, pages: Slots, behind: int = 0) -> None:
        """Append pages [n] that the caller holds; the table releases them from now on.

        `behind`: so many pages of an empty table come before them, which it does not hold. They must be followed by some.
        """
        if not len(pages):
            return
        if not self._count:
            self._number = self._pool.tables.open()
            self._leave(0, behind)
            self._first = self._count = behind
        self._pool.tables.write(self._number, self._count, pages)
        self._count += len(pages)

    def pages(self, start: int, stop: int) -> Slots:
        """The table's pages number start <= i < stop, all of which it holds, int64 [stop - start]."""
        if not self._first <= start <= stop <= self._count and start != stop:
            raise IndexError(f"pages {start}:{stop} of a table that holds {self._first}:{self._count}")
        return self._pool.tables.read(self._number, start, stop).astype(np.int64)

    def slots(self, start: int, stop: int) -> Slots:
        """Slots of local indices start <= i < stop, all of which have one, int64 [stop - start]."""
        if not self.first <= start <= stop <= len(self) and start != stop:
            raise IndexError(f"slots {start}:{stop} of a table that has {self.first}:{len(self)}")
        return self._pool.tables.slots[self._number, start:stop].copy()

    def upto(self, length: int, own: Slots | None = None) -> RowPages:
        """What a row sees of the first `length` tokens; its last pages are those of the row's `own`, where it has some.

        It is to be used before the next change.
        """
        capacity = len(self) + (0 if own is None else len(own) * self._pool.page_size)
        if not 0 < length <= capacity:
            raise IndexError(f"{length} tokens of pages for {capacity}")
        return RowPages(self._number, length, own, self._first)

    def release_before(self, index: int) -> None:
        """Release the pages that no local index from this one on needs, but not the last page."""
        first = min(index // self._pool.page_size, self._count - 1)
        if first > self._first:
            self._pool.release(self.pages(self._first, first))
            self._leave(self._first, first)
            self._first = first

    def _leave(self, start: int, stop: int) -> None:
        self._pool.tables.write(self._number, start, np.full(stop - start, self._pool.spare_page, dtype=np.int64))

    def shrink(self, length: int) -> None:
        """Release the pages that no local index below `length` needs."""
        keep = self._pool.pages_for(length)
        if keep <= self._first:
            keep = 0
        if keep < self._count:
            if self._pool.windows is not None:
                self._see(self._pool.windows, range(min(self._seen.start, keep), min(self._seen.stop, keep)))
            self._pool.release(self.pages(max(keep, self._first), self._count))
            self._count = keep
            if not keep:
                self._first = 0
                self._pool.tables.close(self._number)
                self._number = 0

    def release(self) -> None:
        """Release every page."""
        self.shrink(0)

    def _see(self, windows: WindowPages, seen: range) -> None:
        before = self._seen
        if (seen.start, seen.stop) == (before.start, before.stop):  # all empty ranges are equal
            return
        pages = self._pool.tables.read(self._number, 0, self._count)
        left = [int(pages[number]) for number in before if number not in seen]
        windows.leave(left)  # first: others may need the room
        try:
            windows.hold([int(pages[number]) for number in seen if number not in before])
        except OutOfWindowPages:
            windows.hold(left)
            raise
        self._seen = seen
