"""Rows, masks and packing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.model import Row, RowPages, ancestor_mask, causal_mask

T, F = True, False


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(1, 40))
    return [draw(st.integers(-1, index - 1)) for index in range(size)]


def path_to(parents: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def test_the_worked_example_as_a_row() -> None:
    # cat, 1 sat, 3 on, 2 is, 5 the -- behind the committed token `the`
    row = Row.tree([10, 11, 13, 12, 15], [-1, 0, 1, 0, 2], RowPages.alone(np.array([10, 11]), 6))
    assert row.tail_mask.tolist() == [
        [T, F, F, F, F],
        [T, T, F, F, F],
        [T, T, T, F, F],
        [T, F, F, T, F],
        [T, T, T, F, T],
    ]
    assert row.positions.tolist() == [1, 2, 3, 2, 4]
    assert list(row.logits_at) == [0, 1, 2, 3, 4]


@given(forests())
def test_a_node_sees_exactly_its_path_to_the_root(parents: list[int]) -> None:
    mask = ancestor_mask(parents)
    assert mask.shape == (len(parents), len(parents))
    for node in range(len(parents)):
        assert np.flatnonzero(mask[node]).tolist() == path_to(parents, node)


@given(forests())
def test_positions_count_depth_and_trees_of_one_shape_leave_each_other_alone(parents: list[int]) -> None:
    parents = [-1, *(max(0, parent) for parent in parents[1:])]  # one root
    count = len(parents)
    rows = [Row.tree(range(count), parents, RowPages.alone(np.arange(2), count + before)) for before in (3, 9)]
    for row, before in zip(rows, (3, 9), strict=True):
        assert row.positions.tolist() == [before + len(path_to(parents, node)) - 1 for node in range(count)]
        assert (row.tail_mask == ancestor_mask(parents)).all()
        with pytest.raises(ValueError, match="read-only"):
            row.tail_mask[0, 0] = False


def test_a_chain_of_ancestors_is_the_causal_mask() -> None:
    assert (ancestor_mask(range(-1, 20)) == causal_mask(21)).all()


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 0, -2]])
def test_a_parent_that_does_not_come_earlier_is_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="expected an earlier index"):
        ancestor_mask(parents)


def test_a_chunk_continues_where_the_sequence_stands() -> None:
    row = Row.chunk([7, 8], RowPages(0, 5), logits_at=[1])
    assert row.positions.tolist() == [3, 4]
    assert row.tail_mask.tolist() == [[T, F], [T, T]]


def test_a_row_whose_parts_do_not_fit_together_is_refused() -> None:
    four, positions = RowPages(0, 4), np.arange(4)
    for tail in (1, 5):
        with pytest.raises(ValueError, match=f"tail mask of 2 x {tail}"):
            Row([1, 2], positions[:2], four, np.ones((2, tail), dtype=np.bool_))
    with pytest.raises(ValueError, match="3 positions"):
        Row([1, 2], positions[:3], four, causal_mask(2))
    with pytest.raises(ValueError, match="tail mask of 0 x 0"):
        Row.chunk([], four)
    with pytest.raises(ValueError, match="a row of 0 tokens"):
        RowPages(0, 0)
