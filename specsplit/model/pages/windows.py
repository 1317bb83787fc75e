"""Where layers that see a window or a chunk keep the tokens of pages, in a model whose other layers see all tokens.

These layers have fewer pages of KV than the others. A page has one of them, its *window page*, while a token of it is seen there by
one to come; pages that a session or the prefix cache holds on to have none once their tokens have left the window.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.errors import Exhausted, LoadError
from specsplit.model.pages.geometry import Geometry, Span, first_seen
from specsplit.model.tensors.transfer import on_device
from specsplit.values import pages_held

Ints = NDArray[np.int64]

WindowTokens: TypeAlias = Callable[[int, int], int]
"""From the tokens of the widest window, and those that the other layers have room for, for how many the layers that see one are to."""
_ENDLESS: Final = 1 << 40  # tokens


class OutOfWindowPages(Exhausted):
    """Fewer window pages can be had than were asked for; nothing was taken."""


class WindowPages:
    """Window pages by page, and how many hold each. What nobody holds stays where it is until others need the room."""

    def __init__(self, num_pages: int, count: int, page_size: int, spans: Sequence[Span]) -> None:
        """`count` window pages for `num_pages` pages; `spans`: those of the layers whose KV is in there, each with a bound."""
        self.total_pages: Final = count
        self._page_size: Final = page_size
        self._spans: Final = spans
        self.window: Final = max(span.size or 0 for span in spans)
        """Tokens that a token sees at most in these layers."""
        self.session_pages: Final = _session_pages(page_size, self.window)
        """Window pages that a session holds at most which has one token in a step."""
        self._of = np.full(num_pages + 1, count, dtype=np.int64)
        """By page its window page; the one behind the last where it has none: that is a spare one, and nobody's."""
        self._holders = np.zeros(num_pages, dtype=np.int64)
        self._free = deque(range(count))
        """Given out in the order in which they came back, so that those of one text lie side by side."""
        self._unheld: OrderedDict[int, None] = OrderedDict()
        """Pages whose window pages nobody holds, those first that have been left longest."""
        self.changes = 0
        """How often a page has got or lost its window page."""
        self._copy: tuple[int, Tensor] | None = None

    @property
    def free_pages(self) -> int:
        """Window pages that can be had."""
        return len(self._free) + len(self._unheld)

    def first_seen(self, position: int) -> int:
        """Position of the first token that is seen, in any of these layers, by a token at this position, or by one behind it."""
        return first_seen(self._spans, position)

    def has(self, page: int) -> bool:
        """Whether a page has a window page."""
        return bool(self._of[page] != self.total_pages)

    def hold(self, pages: Sequence[int]) -> None:
        """Let one more hold the window pages of these pages, each named once; who has none gets one. Raises OutOfWindowPages."""
        lacking = [page for page in pages if self._of[page] == self.total_pages]
        spared = len(self._unheld) - sum(page in self._unheld for page in pages)
        if len(lacking) > len(self._free) + spared:
            raise OutOfWindowPages(
                f"{len(lacking)} window pages wanted, {len(self._free) + spared} of {self.total_pages} can be had"
            )
        for page in pages:
            self._unheld.pop(page, None)
            self._holders[page] += 1
        for page in lacking:
            self._give(page)

    def leave(self, pages: Iterable[int]) -> None:
        """One holder needs the window pages of these pages no more."""
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page] and self._of[page] != self.total_pages:
                self._unheld[page] = None

    def hand(self, source: int, target: int) -> None:
        """Give the window page of a page, which holders of it no longer have, to another page, unless that has one. Nobody holds it yet."""
        if self._of[target] == self.total_pages:
            self._of[target], self._of[source] = self._of[source], self.total_pages
            self._unheld.pop(source, None)
            self._unheld[target] = None
            self.changes += 1

    def forget(self, pages: Iterable[int]) -> None:
        """These pages are free: so are their window pages. Raises ValueError, and changes nothing, if somebody holds one."""
        pages = [int(page) for page in pages if self._of[page] != self.total_pages]
        if self._holders[pages].any():
            raise ValueError(f"the window pages of pages {pages} are freed, and some are held")
        for page in pages:
            del self._unheld[page]
            self._take(page)

    def pages_of(self, pages: NDArray[np.int32]) -> Ints:
        """Window pages [n] of pages [n]; the spare one of those that have none."""
        return self._of[pages]

    def slots_of(self, slots: Ints) -> Ints:
        """Where the tokens in slots [n] are kept in these layers, [n]."""
        pages, within = np.divmod(slots, self._page_size)
        return self._of[pages] * self._page_size + within

    def on(self, device: torch.device) -> Tensor:
        """Every page's window page as they are now, int64 [pages + 1], on a device, which is the same every time."""
        if self._copy is None or self._copy[0] != self.changes:
            self._copy = self.changes, on_device(self._of.copy(), device)
        return self._copy[1]

    def on_device(self, slots: Tensor) -> Tensor:
        """Look up the same as `slots_of`, for slots on a device, which is the same every time."""
        pages = slots.div(self._page_size, rounding_mode="floor")
        return self.on(slots.device).take(pages) * self._page_size + slots.remainder(self._page_size)

    def run_of(self, run: slice) -> slice | None:
        """Where a run of slots, of one page or more, is kept, if that is a run as well."""
        size = self._page_size
        pages = self._of[run.start // size : -(-run.stop // size)]
        if not (pages[1:] - pages[:-1] == 1).all() or pages[-1] == self.total_pages:
            return None
        start = int(pages[0]) * size + run.start % size
        return slice(start, start + run.stop - run.start)

    def _give(self, page: int) -> None:
        if not self._free:
            self._take(self._unheld.popitem(last=False)[0])
        self._of[page] = self._free.popleft()
        self.changes += 1

    def _take(self, page: int) -> None:
        self._free.append(int(self._of[page]))
        self._of[page] = self.total_pages
        self.changes += 1


def windows_of(geometry: Geometry, num_pages: int, page_size: int, tokens: WindowTokens | None) -> WindowPages | None:
    """Window pages for so many tokens; None: layers that see a window have a place for every page, if there are any beside others.

    Raises LoadError if they are too few for one session.
    """
    pages = window_pages(geometry, num_pages, page_size, tokens)
    if pages is None:
        return None
    window = _widest(geometry)
    least = _session_pages(page_size, window) + 1
    if pages < least:
        raise LoadError(
            f"{pages * page_size} KV tokens are too few for layers that see a window of {window}: window_kv_tokens has to be "
            f"{least * page_size} at least"
        )
    return WindowPages(num_pages, pages, page_size, geometry.bounded)


def window_pages(geometry: Geometry, num_pages: int, page_size: int, tokens: WindowTokens | None) -> int | None:
    """How many window pages there are beside so many pages; None: all layers have all pages."""
    if tokens is None or not geometry.bounded:
        return None
    pages = tokens(_widest(geometry), num_pages * page_size) // page_size
    return None if pages >= num_pages else pages


def _widest(geometry: Geometry) -> int:
    return max(span.size or 0 for span in geometry.bounded)


def _session_pages(page_size: int, window: int) -> int:
    return pages_held(_ENDLESS, 1, page_size, window)
