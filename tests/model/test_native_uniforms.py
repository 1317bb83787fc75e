"""The uniform numbers that the kernel in C makes, held to integer arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.model.native import library
from specsplit.model.native.uniforms import negated_uniforms
from specsplit.splitmix import GOLDEN, draw

pytestmark = pytest.mark.skipif(library.obstacle() is not None, reason=str(library.obstacle()))


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1)), max_size=5), st.integers(1, 40))
@settings(deadline=None)
def test_uniforms_are_draws_of_the_streams_to_the_last_bit(streams: list[tuple[int, int]], width: int) -> None:
    made = negated_uniforms([seed for seed, _ in streams], [position for _, position in streams], width)
    keys = [draw(draw(seed) + position * GOLDEN) for seed, position in streams]
    expected = [[-(draw(key + v * GOLDEN) >> 11 | 1) / 2**53 for v in range(width)] for key in keys]
    assert made.tolist() == expected
