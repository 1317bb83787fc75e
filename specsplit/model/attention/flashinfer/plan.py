"""The arrays by which FlashInfer's paged wrappers plan a batch. Rows and page tables in, host arrays out; nothing here needs the package.

Rows make up to two groups, with a call of a wrapper (or two) each:

    in order   every new token sees all tokens before it: prompt chunks, single tokens, chains. The kernel's causal mask says that.
    trees      the whole pages that every node sees need no mask (`prefix`); the rest of a row, which holds its tree, has a mask of
               one bit per node and token (`seen`). The results of the two are merged. If there is little to see it is all masked.

    B   rows of the group        Q, L, E   as in `specsplit.model.pages.batch`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specsplit.model.pages.batch import Ints, Mask, Row, causal_mask
from specsplit.model.pages.tables import Pages, PageTables

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

    def masked(self, rows: Sequence[Row]) -> PagedRows:
        """These rows with the masks of `rows`: what lies before the last E tokens of one is seen by all of its queries."""
        lengths = self.lengths.tolist()
        sizes = [row.num_tokens * length for row, length in zip(rows, lengths, strict=True)]
        mask, start = np.zeros(sum(sizes), dtype=np.uint8), 0
        for row, length, size in zip(rows, lengths, sizes, strict=True):
            shown = np.ones((row.num_tokens, length), dtype=np.bool_)
            shown[:, length - row.tail_mask.shape[1] :] = row.tail_mask
            bits = np.packbits(shown, axis=None, bitorder="little")
            mask[start : start + len(bits)] = bits
            start += size
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
    """With a mask for trees, and without one for rows in order, whose queries attend causally: query i to all but the last Q - 1 - i."""
    prefix: PagedRows | None = None
    """What every query of its row attends to besides."""


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


def lay_out(rows: Sequence[Row], tables: PageTables, form: Form) -> Layout:
    """Lay rows (at least one) out, which are one behind the other in the batch. ORDERED is for rows that are all in order."""
    match form:
        case Form.ORDERED:
            return Layout(*_in_order(rows, tables))
        case Form.WHOLE:
            return Layout(_masked(rows, tables))
        case Form.SPLIT:
            return Layout(*_split(rows, tables))


def forms_of(rows: Sequence[Row], page_size: int, whole_mask: int = WHOLE_MASK) -> dict[Form, int]:
    """Forms that pay for rows (at least one), the one that costs the least first, and the bytes of mask that each takes."""
    queries, lengths = _sizes(rows)
    forms: dict[Form, int] = {}
    if all(in_order(row.tail_mask) for row in rows):
        forms[Form.ORDERED] = 0
    if _whole_pays(rows, page_size, whole_mask):
        forms[Form.WHOLE] = int(queries @ lengths)
    return {**forms, Form.SPLIT: int(queries @ (lengths - _shared(rows, lengths, page_size) * page_size))}


def plan_groups(rows: Sequence[Row], tables: PageTables, whole_mask: int = WHOLE_MASK) -> list[Group]:
    """Lay rows (at least one) out, which are one behind the other in the batch."""
    queries = np.array([row.num_tokens for row in rows])
    starts = queries.cumsum() - queries
    ordered = np.array([in_order(row.tail_mask) for row in rows])
    groups: list[Group] = []
    for members, layout in ((np.flatnonzero(ordered), _in_order), (np.flatnonzero(~ordered), _trees(whole_mask))):
        if members.size:
            seen, prefix = layout([rows[index] for index in members.tolist()], tables)
            groups.append(Group(_tokens(starts[members], queries[members]), seen, prefix))
    return groups


def in_order(mask: Mask) -> bool:
    """Whether each new token sees all that come before it, and itself."""
    queries, tail = mask.shape
    if queries != tail or 2 * np.count_nonzero(mask) != queries * (queries + 1):
        return False
    return bool((mask == _causal(queries)).all())


_Layout = Callable[[Sequence[Row], PageTables], tuple[PagedRows, PagedRows | None]]


def _in_order(rows: Sequence[Row], tables: PageTables) -> tuple[PagedRows, None]:
    queries, lengths = _sizes(rows)
    return PagedRows.of(queries, [tables.listed(row.pages) for row in rows], lengths, tables.page_size), None


def _trees(whole_mask: int) -> _Layout:
    def layout(rows: Sequence[Row], tables: PageTables) -> tuple[PagedRows, PagedRows | None]:
        if _whole_pays(rows, tables.page_size, whole_mask):
            return _masked(rows, tables), None
        return _split(rows, tables)

    return layout


def _whole_pays(rows: Sequence[Row], page_size: int, whole_mask: int) -> bool:
    queries, lengths = _sizes(rows)
    return not _shared(rows, lengths, page_size).any() or int(queries @ lengths) <= whole_mask


def _shared(rows: Sequence[Row], lengths: Ints, page_size: int) -> Ints:
    """[B] whole pages that all queries of a row see."""
    return (lengths - np.array([row.tail_mask.shape[1] for row in rows])) // page_size


def _masked(rows: Sequence[Row], tables: PageTables) -> PagedRows:
    return _in_order(rows, tables)[0].masked(rows)


def _split(rows: Sequence[Row], tables: PageTables) -> tuple[PagedRows, PagedRows]:
    """The rest of the rows, masked, and what they share."""
    queries, lengths = _sizes(rows)
    shared, size = _shared(rows, lengths, tables.page_size), tables.page_size
    pages = [tables.listed(row.pages) for row in rows]
    fronts = [each[:cut] for each, cut in zip(pages, shared.tolist(), strict=True)]
    backs = [each[cut:] for each, cut in zip(pages, shared.tolist(), strict=True)]
    seen = PagedRows.of(queries, backs, lengths - shared * size, size).masked(rows)
    return seen, PagedRows.of(queries, fronts, shared * size, size)


def _sizes(rows: Sequence[Row]) -> tuple[Ints, Ints]:
    return np.array([row.num_tokens for row in rows]), np.array([row.pages.length for row in rows])


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
