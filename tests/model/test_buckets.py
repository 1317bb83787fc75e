"""The sizes of captured forwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.model.graphs import Bucket, Buckets

SIZES = st.integers(1, 300)


def test_tokens_go_by_powers_of_two_and_rows_by_powers_of_four_largest_first() -> None:
    tokens = [(bucket.tokens, bucket.rows) for bucket in Buckets(12, 6)]
    assert tokens == [(12, 6), (12, 4), (12, 1), (8, 6), (8, 4), (8, 1), (4, 4), (4, 1), (2, 1), (1, 1)]
    assert len(Buckets(12, 6)) == 10


@pytest.mark.parametrize(
    ("tokens", "rows", "bucket"),
    [(1, 1, (1, 1)), (2, 2, (4, 4)), (16, 1, (16, 1)), (17, 1, (32, 1)), (17, 5, (32, 16)), (5, 5, (16, 16))],
)
def test_a_step_gets_the_least_that_holds_it(tokens: int, rows: int, bucket: tuple[int, int]) -> None:
    assert Buckets(256, 64).fit(tokens, rows) == Bucket(*bucket)


@given(SIZES, SIZES, SIZES, SIZES)
def test_fit_is_the_least_of_all_and_none_only_where_the_largest_is_too_small(
    most_tokens: int, most_rows: int, tokens: int, rows: int
) -> None:
    buckets = Buckets(most_tokens, most_rows)
    rows = min(rows, tokens)
    held = [bucket for bucket in buckets if bucket.tokens >= tokens and bucket.rows >= rows]
    assert buckets.fit(tokens, rows) == min(held, default=None)
    assert (not held) == (tokens > most_tokens or rows > min(most_rows, most_tokens))
    assert next(iter(buckets)) == Bucket(buckets.most_tokens, buckets.most_rows)
    assert all(bucket.rows <= bucket.tokens for bucket in buckets)


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="most_tokens is 0 and most_rows is 4"):
        Buckets(0, 4)
