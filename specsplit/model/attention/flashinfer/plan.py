"""The arrays by which FlashInfer's paged wrappers plan a batch. Rows and page tables in, host arrays out; nothing here needs the package.

Rows make up to two groups, with a call of a wrapper (or two) each:

    in order   every new token sees all tokens before it, or a window of them: prompt chunks, single tokens, chains. The kernel's causal
               mask says that, with its `window_left`.
    trees      the whole pages that every node sees need no mask (`prefix`); the rest of a row has a mask of one bit per node and token
               (`seen`): its tree, and where a window begins also the pages that some nodes see and others do not. The results of the
               two are merged. If there is little to see it is all masked.

Layers of another span see the same rows in other groups. Pages in front of all that a row's new tokens see are not listed.

    B   rows of the group        Q, L, E   as in `specsplit.model.pages.batch`
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specsplit.model.pages.batch import Ints, Mask, Row, Sight, causal_mask
from specsplit.model.pages.geometry import ALL, Span
from specsplit.model.pages.tables import PageLists, Pages

WHOLE_MASK: Final = 1 << 15
"""Up to so many elements of the mask (sum of Q * L) trees are masked as a whole: one kernel instead of three."""

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class PagedRows:
    """The queries of some rows and the pages that they attend to, int32, as `plan` of a paged wrapper takes them."""

    qo_indptr: Int32s
    """[B + 1] where the queries of each row begin."""
    kv_indptr: Int32s
    """[B + 1] where the pages of each row begin."""
    indices: Int32s
    """[sum of pages]"""
    last_page_len: Int32s
    """[B] tokens on each row's last page; 0 if it has no page."""
    lengths: Int32s
    """[B] tokens that each row attends to."""
    mask: NDArray[np.uint8] | None = None
    """Bit i % 8 (the least first) of byte i // 8 of a row: does query i // length see token i % length? None: there is no mask.

    The bytes of a row begin at as many bytes as the rows before it have elements, not at the next free byte: given a mask in
    bits, the wrapper finds the rows in it by counting elements.
    """

    @classmethod
    def of(cls, queries: Ints, pages: Sequence[Pages], lengths: Ints, page_size: int) -> PagedRows:
        """queries, lengths [B], and the pages of each row."""
        last = np.where(lengths > 0, (lengths - 1) % page_size + 1, 0)
        counts = np.array([len(each) for each in pages])
        return cls(_indptr(queries), _indptr(counts), np.concatenate(pages), _int32(last), _int32(lengths))

    def masked(self, shown: Sequence[Mask]) -> PagedRows:
        """These rows with a mask each, bool [Q, length]."""
        mask, start = np.zeros(sum(each.size for each in shown), dtype=np.uint8), 0
        for each in shown:
            bits = np.packbits(each, axis=None, bitorder="little")
            mask[start : start + len(bits)] = bits
            start += each.size
        return replace(self, mask=mask)

    def padded(self, count: int) -> PagedRows:
        """These rows and, behind them, rows that have neither queries nor pages, `count` rows in all."""
        more = count - len(self.lengths)
        qo_indptr, kv_indptr = (np.pad(each, (0, more), "edge") for each in (self.qo_indptr, self.kv_indptr))
        last_page_len, lengths = (np.pad(each, (0, more)) for each in (self.last_page_len, self.lengths))
        return PagedRows(qo_indptr, kv_indptr, self.indices, last_page_len, lengths, self.mask)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows that are attended to in the same way."""

    tokens: Ints | slice
    """Index into the new tokens of the batch, of those of the group."""
    seen: PagedRows
    """With a mask for trees, and without one for rows in order, whose queries attend causally: query i to all but the last Q - 1 - i, or
    to those of them that are in its window."""
    prefix: PagedRows | None = None
    """What every query of its row attends to besides."""
    ordered: bool = False
    """Whether its rows are in order."""


class Form(Enum):
    """How a whole batch is attended to by the same kernels, whatever its rows are: what a captured forward needs."""

    ORDERED = "ordered"
    """All rows are in order."""
    WHOLE = "whole"
    """All is masked."""
    SPLIT = "split"
    """The whole pages that all queries of a row see need no mask, the rest is masked, and the two are merged."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What a form attends to."""

    seen: PagedRows
    """The rows that are attended to, with a mask but for ORDERED."""
    prefix: PagedRows | None = None
    """The whole pages of the rows that need no mask, for SPLIT alone."""


def lay_out(rows: Sequence[Row], tables: PageLists, form: Form, span: Span = ALL) -> Layout:
    """Lay rows (at least one) out, which are one behind the other in the batch.

    ORDERED is for rows that are all in order; others, which are padding, are seen from their first token on.
    """
    if form is Form.ORDERED:
        return Layout(_in_order(rows, tables, [_causal_from(row, span, tables.page_size) or 0 for row in rows]))
    cuts = [_Cut.of(row, span, tables.page_size) for row in rows]
    return Layout(_masked(cuts, tables)) if form is Form.WHOLE else Layout(*_split(cuts, tables))


def forms_of(
    rows: Sequence[Row], page_size: int, whole_mask: int = WHOLE_MASK, spans: Collection[Span] = (ALL,)
) -> dict[Form, int]:
    """Forms that pay for rows (at least one) in all spans, the one that costs the least first, and the most bytes of mask of each."""
    cuts = [[_Cut.of(row, span, page_size) for row in rows] for span in spans]
    forms: dict[Form, int] = {}
    if all(_causal_from(row, span, page_size) is not None for span in spans for row in rows):
        forms[Form.ORDERED] = 0
    if all(_whole_pays(each, whole_mask) for each in cuts):
        forms[Form.WHOLE] = max(sum(cut.whole_mask for cut in each) for each in cuts)
    return {**forms, Form.SPLIT: max(sum(cut.split_mask for cut in each) for each in cuts)}


def plan_groups(
    rows: Sequence[Row],
    tables: PageLists,
    whole_mask: int = WHOLE_MASK,
    span: Span = ALL,
    *,
    by_path: bool = False,
) -> list[Group]:
    """Lay rows (at least one) out, which are one behind the other in the batch, as layers of a span see them.

    by_path: trees have no masks. Each node is a row of its own, which lists the slots of its path, in the place of pages; see `_paths`.
    """
    queries = _queries(rows)
    starts = queries.cumsum() - queries
    firsts = [_causal_from(row, span, tables.page_size) for row in rows]
    ordered = {number: first for number, first in enumerate(firsts) if first is not None}
    masked = [number for number, first in enumerate(firsts) if first is None]
    groups: list[Group] = []
    if ordered:
        seen = _in_order([rows[number] for number in ordered], tables, list(ordered.values()))
        groups.append(Group(_tokens(starts[list(ordered)], queries[list(ordered)]), seen, ordered=True))
    if masked:
        trees = [rows[number] for number in masked]
        layout = _paths(trees, tables) if by_path else _trees(trees, tables, whole_mask, span)
        groups.append(Group(_tokens(starts[masked], queries[masked]), layout.seen, layout.prefix))
    return groups


def in_order(mask: Mask) -> bool:
    """Whether each new token sees all that come before it, and itself."""
    queries, tail = mask.shape
    if queries != tail or 2 * np.count_nonzero(mask) != queries * (queries + 1):
        return False
    return bool((mask == _causal(queries)).all())


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """A row that is masked, by its pages: those in front that no new token sees, and those between that all of them see."""

    row: Row
    sight: Sight
    size: int
    """Tokens of a page."""
    first: int
    """Pages that no new token sees."""
    shared: slice
    """Whole pages that all new tokens see, of those behind; an empty one stands right behind the first."""
    num_shared: int
    """Tokens of these."""
    num_listed: int
    """Tokens of the row's pages but for those in front that none sees."""

    @classmethod
    def of(cls, row: Row, span: Span, size: int) -> _Cut:
        sight = Sight.of(row, span)
        first = sight.first // size
        start = max(first, -(-sight.shared // size))
        stop = max(start, sight.before // size)
        if start == stop:
            start = stop = first
        return cls(row, sight, size, first, slice(start, stop), (stop - start) * size, row.pages.length - first * size)

    @property
    def whole_mask(self) -> int:
        """Elements of the mask of all that is listed."""
        return self.row.num_tokens * self.num_listed

    @property
    def split_mask(self) -> int:
        """Elements of the mask without what all new tokens see."""
        return self.row.num_tokens * (self.num_listed - self.num_shared)

    def shown(self) -> Mask:
        """The mask of all that is listed, bool [Q, num_listed]."""
        return self.sight.shown(self.first * self.size, self.row.pages.length)

    def shown_around(self) -> Mask:
        """The mask of what is left without the shared pages."""
        behind = self.sight.shown(self.shared.stop * self.size, self.row.pages.length)
        if self.shared.start == self.first:
            return behind
        before = self.sight.shown(self.first * self.size, self.shared.start * self.size)
        return np.concatenate((before, behind), axis=1)

    def around(self, pages: Pages) -> Pages:
        """Pages that are listed, of all of the row, without the shared ones."""
        if self.shared.start == self.first:
            return pages[self.shared.stop :]
        return np.concatenate((pages[self.first : self.shared.start], pages[self.shared.stop :]))


def _causal_from(row: Row, span: Span, page_size: int) -> int | None:
    """The local index from which on the kernel's causal mask, with the window, says what new tokens see; None: it takes another mask."""
    if not in_order(row.tail_mask):
        return None
    length = row.pages.length
    if span.chunk is None:
        return 0 if span.window is None else max(0, length - row.num_tokens + 1 - span.window)
    begin = max(0, length - int(span.reach(row.positions[-1])))
    return begin if begin <= length - row.num_tokens and begin % page_size == 0 else None


def _in_order(rows: Sequence[Row], tables: PageLists, firsts: Sequence[int]) -> PagedRows:
    """`firsts`: the local index from which on each row is seen."""
    size = tables.page_size
    skipped = np.array(firsts) // size
    pages = [tables.listed(row.pages)[start:] for row, start in zip(rows, skipped.tolist(), strict=True)]
    lengths = np.array([row.pages.length for row in rows]) - skipped * size
    return PagedRows.of(_queries(rows), pages, lengths, size)


def _trees(rows: Sequence[Row], tables: PageLists, whole_mask: int, span: Span) -> Layout:
    cuts = [_Cut.of(row, span, tables.page_size) for row in rows]
    return Layout(_masked(cuts, tables)) if _whole_pays(cuts, whole_mask) else Layout(*_split(cuts, tables))


def _whole_pays(cuts: Sequence[_Cut], whole_mask: int) -> bool:
    return not any(cut.num_shared for cut in cuts) or sum(cut.whole_mask for cut in cuts) <= whole_mask


def _masked(cuts: Sequence[_Cut], tables: PageLists) -> PagedRows:
    queries = _queries([cut.row for cut in cuts])
    pages = [tables.listed(cut.row.pages)[cut.first :] for cut in cuts]
    lengths = np.array([cut.num_listed for cut in cuts])
    return PagedRows.of(queries, pages, lengths, tables.page_size).masked([cut.shown() for cut in cuts])


def _split(cuts: Sequence[_Cut], tables: PageLists) -> tuple[PagedRows, PagedRows]:
    """The rest of the rows, masked, and what their new tokens share."""
    queries = _queries([cut.row for cut in cuts])
    pages = [tables.listed(cut.row.pages) for cut in cuts]
    around = [cut.around(each) for each, cut in zip(pages, cuts, strict=True)]
    between = [each[cut.shared] for each, cut in zip(pages, cuts, strict=True)]
    shared, size = np.array([cut.num_shared for cut in cuts]), tables.page_size
    rest = np.array([cut.num_listed for cut in cuts]) - shared
    seen = PagedRows.of(queries, around, rest, size).masked([cut.shown_around() for cut in cuts])
    return seen, PagedRows.of(queries, between, shared, size)


def _paths(rows: Sequence[Row], tables: PageLists) -> Layout:
    """Every new token as a row, of the slots of what it sees behind the whole pages that all of its row see, which are the prefix."""
    size = tables.page_size
    cuts = [_Cut.of(row, ALL, size) for row in rows]
    pages = [tables.listed(row.pages) for row in rows]
    shown = [cut.shown_around() for cut in cuts]
    within = np.arange(size)
    slots = [
        np.add.outer(each[cut.shared.stop :].astype(np.int64) * size, within).reshape(-1)
        for each, cut in zip(pages, cuts, strict=True)
    ]
    seen = np.concatenate([_int32(each[np.nonzero(mask)[1]]) for each, mask in zip(slots, shown, strict=True)])
    lengths = np.concatenate([mask.sum(axis=1) for mask in shown])
    ones = np.ones(len(lengths), dtype=np.int64)
    paths = PagedRows(_indptr(ones), _indptr(lengths), seen, _int32(ones), _int32(lengths))
    shared = np.array([cut.num_shared for cut in cuts])
    if not shared.any():
        return Layout(paths)
    between = [each[cut.shared] for each, cut in zip(pages, cuts, strict=True)]
    return Layout(paths, PagedRows.of(_queries(rows), between, shared, size))


def _queries(rows: Sequence[Row]) -> Ints:
    return np.array([row.num_tokens for row in rows])


def _tokens(starts: Ints, queries: Ints) -> Ints | slice:
    """A slice if the rows lie side by side: then nothing has to be gathered."""
    first, total = int(starts[0]), int(queries.sum())
    if int(starts[-1] + queries[-1]) - first == total:
        return slice(first, first + total)
    return np.arange(total) + (starts - (queries.cumsum() - queries)).repeat(queries)


def _indptr(counts: Ints) -> Int32s:
    return np.concatenate(([0], counts.cumsum()), dtype=np.int32, casting="same_kind")


def _int32(values: Ints) -> Int32s:
    return values.astype(np.int32)


@lru_cache(maxsize=64)
def _causal(length: int) -> Mask:
    return causal_mask(length)
