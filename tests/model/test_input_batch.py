"""Rows find their KV in the page tables: slots of new tokens and of all that they see."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.model import PagePool, PageTable, Row, RowPages
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.tables import TablesCopy
from specsplit.model.tensors.staging_buffer import StagingBuffer

CPU = torch.device("cpu")


def packed(pool: PagePool, rows: list[Row], *, in_numpy: bool = True) -> InputBatch:
    return InputBatch(rows, pool.tables, CPU, in_numpy=in_numpy)


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


def test_packing_puts_rows_end_to_end_and_shifts_the_logit_indices() -> None:
    batch = packed(
        PagePool(1, 1),
        [
            Row.chunk([1, 2, 3], RowPages(0, 3)),
            Row.tree([4, 5], [-1, 0], RowPages(1, 4)),
            Row.chunk([6, 7], RowPages(2, 6), logits_at=[1, 0]),
        ],
    )
    assert batch.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert batch.positions.tolist() == [0, 1, 2, 2, 3, 4, 5]
    assert batch.starts.tolist() == [0, 3, 5]
    assert batch.logits_at.tolist() == [3, 4, 6, 5]


def test_new_tokens_are_written_behind_what_their_rows_see(example: tuple[PagePool, list[Row]]) -> None:
    assert packed(*example).write_slots.tolist() == [10, 11, 12, 5, 6, 7, 20, 21, 24, 25, 26, 27, 28]


def test_shorter_rows_are_padded_with_their_own_first_slot(example: tuple[PagePool, list[Row]]) -> None:
    assert packed(*example).slots([1, 2]).tolist() == [[4, 5, 6, 7, 4, 4], [16, 17, 18, 19, 20, 21]]
    assert packed(*example).slots([0, 3]).tolist() == [[0, 1, 2, 3, 8, 9, 10, 11, 12], [0, 1, 2, 3, 24, 25, 26, 27, 28]]


def test_one_row_whose_pages_lie_side_by_side_is_a_run_and_no_other_is(example: tuple[PagePool, list[Row]]) -> None:
    pool, rows = example
    assert [packed(pool, [row]).run for row in rows] == [None, slice(4, 8), slice(16, 22), None]
    assert packed(pool, rows[1:3]).run is None
    assert packed(pool, rows[2:3]).write_slots.tolist() == [20, 21]


@given(st.data())
def test_slots_are_those_of_the_table_whatever_the_page_size_in_numpy_and_in_torch(data: st.DataObject) -> None:
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
    most = max(map(len, expected))
    filled = [seen + seen[:1] * (most - len(seen)) for seen in expected]
    written = [slot for row, seen in zip(rows, expected, strict=True) for slot in seen[-row.num_tokens :]]
    some = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
    in_numpy, in_torch = packed(pool, rows), packed(pool, rows, in_numpy=False)
    for found in (in_numpy, in_torch):
        assert found.slots(range(len(rows))).tolist() == filled
        assert found.write_slots.tolist() == written
        assert found.write_slots.dtype == found.slots(some).dtype == torch.int64
    assert in_numpy.slots(some).equal(in_torch.slots(some))


def no_memory(_: object) -> torch.Tensor:
    raise torch.OutOfMemoryError("none left")


@given(st.data())
def test_a_copy_of_the_tables_is_brought_up_to_date_by_what_was_written(data: st.DataObject) -> None:
    copy, buffer, matrix = TablesCopy(CPU), StagingBuffer(CPU), np.zeros((3, 8), dtype=np.int32)

    def told() -> list[list[int]]:
        follow = copy.follow(matrix, buffer.begin())
        buffer.send()
        return follow().tolist()

    def fails() -> None:
        """A step has no room for what is put, or ends before it is written."""
        upload = buffer.begin()
        if data.draw(st.booleans()):
            copy.follow(matrix, upload)
            return
        with suppress(torch.OutOfMemoryError):
            copy.follow(matrix, no_memory)

    for _ in range(4):
        for _ in range(data.draw(st.integers(0, 3))):
            table, start = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 7))
            stop = data.draw(st.integers(start, 8))
            matrix[table, start:stop] = data.draw(st.integers(1, 99))
            copy.note(table, start, stop)
        if data.draw(st.booleans()):
            fails()
        if data.draw(st.booleans()):
            assert told() == matrix.tolist()
    matrix = np.pad(matrix, ((0, 1), (0, 8)), constant_values=5)
    assert told() == matrix.tolist(), "all of it, once it has grown"


def test_more_than_its_pages_hold_cannot_be_seen() -> None:
    pool = PagePool(8, 4)
    table = PageTable(pool)
    table.reserve(4)
    with pytest.raises(IndexError, match="5 tokens of pages for 4"):
        table.upto(5)
    assert isinstance(table.upto(8, pool.allocate(1)), RowPages)
