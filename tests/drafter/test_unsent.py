"""When a verifier is told of what was grown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.speculation import Grow
from specsplit_drafter.growth.unsent import FREE_GROWS, SPACING, UnsentGrows

WINDOW_S = 0.015


def told_of(moments: Sequence[float], unsent: UnsentGrows, window_s: float = WINDOW_S) -> list[tuple[float, Grow]]:
    """When a verifier is told of what, if a node is made at each of these moments, and the session rests behind the last."""
    told: list[tuple[float, Grow]] = []
    for moment, number in zip(moments, count(1)):
        unsent.add(Grow(0, (number,), (0,), (number,), (0.0,)))
        resting = number == len(moments)
        told += [(moment, grow) for grow in unsent.take(0, resting, moment, window_s, whole=False)]
    return told


def test_grows_gather_for_a_fifth_of_the_window() -> None:
    told = told_of([0.001 * n for n in range(1, 9)], UnsentGrows())
    assert [len(grow.ids) for _, grow in told] == [1, 3, 3, 1], "the worked example, and what the session rests with"


@given(st.lists(st.floats(0.0, 0.1), min_size=1, max_size=60).map(sorted), st.floats(0.0, 0.1))
def test_all_is_told_in_order_the_first_and_the_last_at_once_and_little_in_between(
    moments: list[float], window_s: float
) -> None:
    told = told_of(moments, UnsentGrows(), window_s)
    assert [node for _, grow in told for node in grow.ids] == list(range(1, len(moments) + 1))
    assert (told[0][0], told[-1][0]) == (moments[0], moments[-1])
    assert told[-1][1].resting
    left = [moment for moment, _ in told[:-1]]
    assert all(after - before >= SPACING * window_s - 1e-9 for before, after in pairwise(left))


@pytest.mark.parametrize("event", ["commit", "plan"])
def test_what_the_verifier_says_is_answered_at_once(event: str) -> None:
    unsent = UnsentGrows()
    told_of([0.0, 0.001], unsent)
    unsent.add(Grow(0, (3,), (0,), (3,), (0.0,)))
    if event == "commit":
        unsent.seal()
        (before,) = unsent.take(1, False, 0.0011, WINDOW_S, whole=False)
        assert before.ids == (3,), "made before the commit, and told as that"
        unsent.add(Grow(1, (4,), (0,), (4,), (0.0,)))
    else:
        unsent.reset_spacing()
    assert len(unsent.take(1, False, 0.0012, WINDOW_S, whole=False)) == 1
    unsent.add(Grow(1, (5,), (0,), (5,), (0.0,)))
    assert not unsent.take(1, False, 0.0013, WINDOW_S, whole=False)


def test_a_step_that_takes_for_ever_is_not_told_of_every_node() -> None:
    moments = [float(number) for number in range(400)]
    assert [len(grow.ids) for _, grow in told_of(moments, UnsentGrows())][:FREE_GROWS] == [1] * FREE_GROWS
    assert [len(grow.ids) for _, grow in told_of(moments, UnsentGrows())][FREE_GROWS:-1] == [12, 18, 27, 41, 61, 92]
