"""Rows find their KV in the page tables: slots of new tokens and of all that they see, and the indices that FlashInfer takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.model import PagePool, PageTable, Row, RowPages
from specsplit.model.batch import PackedBatch
from specsplit.model.page_tables import TablesCopy
from specsplit.model.paged_rows import PagedRows

CPU = torch.device("cpu")


def paged(pool: PagePool, rows: list[Row]) -> PagedRows:
    return PagedRows(PackedBatch.pack(rows), pool.tables, CPU)


@pytest.fixture
def example() -> tuple[PagePool, list[Row]]:
    """Tables of pages 0, 2, 3 and 1 and 4, 5, and a row that reads page 0 and then scratch pages 6 and 7; four tokens to a page."""
    pool = PagePool(8, 4)
    first, second, third = (PageTable(pool) for _ in range(3))
    for table, length in ((first, 4), (second, 4), (first, 10), (third, 6)):
        table.reserve(length)
    rows = [
        Row.chunk([1, 2, 3], first.upto(9)),
        Row.tree([1, 2, 3], [-1, 0, 0], second.upto(4)),
        Row.chunk([1, 2], third.upto(6)),
        Row.chunk([1, 2, 3, 4, 5], first.upto(9, pool.allocate(2))),
    ]
    return pool, rows


def test_new_tokens_are_written_behind_what_their_rows_see(example: tuple[PagePool, list[Row]]) -> None:
    assert paged(*example).write_slots.tolist() == [10, 11, 12, 5, 6, 7, 20, 21, 24, 25, 26, 27, 28]


def test_shorter_rows_are_padded_with_their_own_first_slot(example: tuple[PagePool, list[Row]]) -> None:
    assert paged(*example).slots([1, 2]).tolist() == [[4, 5, 6, 7, 4, 4], [16, 17, 18, 19, 20, 21]]
    assert paged(*example).slots([0, 3]).tolist() == [[0, 1, 2, 3, 8, 9, 10, 11, 12], [0, 1, 2, 3, 24, 25, 26, 27, 28]]


def test_the_indices_of_flashinfer_are_the_pages_end_to_end(example: tuple[PagePool, list[Row]]) -> None:
    found = paged(*example).indices()
    assert found.indptr.tolist() == [0, 3, 4, 6, 9]
    assert found.indices.tolist() == [0, 2, 3, 1, 4, 5, 0, 6, 7]
    assert found.last_page_len.tolist() == [1, 4, 2, 1]
    assert {part.dtype for part in found} == {torch.int32}


def test_one_row_whose_pages_lie_side_by_side_is_a_run_and_no_other_is(example: tuple[PagePool, list[Row]]) -> None:
    pool, rows = example
    assert [paged(pool, [row]).run for row in rows] == [None, slice(4, 8), slice(16, 22), None]
    assert paged(pool, rows[1:3]).run is None
    assert paged(pool, rows[2:3]).write_slots.tolist() == [20, 21]


@given(st.data())
def test_slots_are_those_of_the_table_whatever_the_page_size(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 4, 16]))
    pool = PagePool(64, size)
    tables = [PageTable(pool) for _ in range(data.draw(st.integers(1, 9)))]
    for table in data.draw(st.permutations(tables * 2)):
        table.reserve(len(table) + data.draw(st.integers(1, 3)))
    rows: list[Row] = []
    expected: list[list[int]] = []
    for table in tables:
        length = data.draw(st.integers(1, len(table)))
        own = np.array(data.draw(st.permutations(range(64)))[: data.draw(st.integers(0, pool.pages_for(length)))])
        pages = table.upto(length, own if len(own) else None)
        rows.append(Row.chunk([7] * data.draw(st.integers(1, length)), pages))
        listed = [*table.pages(0, pool.pages_for(length) - len(own)).tolist(), *own.tolist()]
        expected.append([page * size + at for page in listed for at in range(size)][:length])
    found = paged(pool, rows)
    slots = found.slots(range(len(rows)))
    assert [row[: len(seen)].tolist() for row, seen in zip(slots, expected, strict=True)] == expected
    written = [slot for row, seen in zip(rows, expected, strict=True) for slot in seen[-row.num_tokens :]]
    assert found.write_slots.tolist() == written


@given(st.data())
def test_a_copy_of_the_tables_is_brought_up_to_date_by_what_was_written(data: st.DataObject) -> None:
    copy, matrix = TablesCopy(CPU), np.zeros((3, 8), dtype=np.int32)
    for _ in range(4):
        for _ in range(data.draw(st.integers(0, 3))):
            table, start = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 7))
            stop = data.draw(st.integers(start, 8))
            matrix[table, start:stop] = data.draw(st.integers(1, 99))
            copy.note(table, start, stop)
        if data.draw(st.booleans()):
            assert copy.updated(matrix).tolist() == matrix.tolist()
    grown = np.pad(matrix, ((0, 1), (0, 8)), constant_values=5)
    assert copy.updated(grown).tolist() == grown.tolist()


def test_more_than_its_pages_hold_cannot_be_seen() -> None:
    pool = PagePool(8, 4)
    table = PageTable(pool)
    table.reserve(4)
    with pytest.raises(IndexError, match="5 tokens of pages for 4"):
        table.upto(5)
    assert isinstance(table.upto(8, pool.allocate(1)), RowPages)
