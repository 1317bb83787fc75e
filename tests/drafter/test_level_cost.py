"""How many levels an expansion draws follows from what they cost."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit_drafter.growth.level_cost import CHEAPER, FIRST_TRIAL, TRIAL_INTERVAL, LevelCost


def learnt(level_s: float, brought: int = 2) -> LevelCost:
    cost = LevelCost()
    for _ in range(40):
        cost.observe(2 * level_s, brought)
    return cost


@pytest.mark.parametrize(
    ("level_s", "alone_s", "step_s", "levels"),
    [
        (0.0002, 0.001, 0.010, 8),
        (0.0002, 0.001, 0.0058, 3),  # 1 + (1.45 - 1) / 0.2
        (0.0002, 0.001, 0.004, 1),  # a commit would wait for too long
        (0.0009, 0.001, 1.0, 1),  # hardly cheaper
        (0.0002, 0.001, math.inf, 8),  # nobody commits meanwhile
    ],
)
def test_as_many_levels_are_drawn_as_are_cheaper_and_as_a_commit_can_wait_for(
    level_s: float, alone_s: float, step_s: float, levels: int
) -> None:
    assert learnt(level_s).choose(8, alone_s, step_s) == levels


def test_levels_that_bring_nothing_count_as_dear() -> None:
    assert learnt(0.0002).choose(8, 0.001, 1.0) == 8
    assert learnt(0.0002, brought=0).choose(8, 0.001, 1.0) == 1


def test_one_level_is_drawn_until_two_have_been_tried_which_is_rare() -> None:
    cost = LevelCost()
    chosen = [cost.choose(8, 0.001, 1.0) for _ in range(FIRST_TRIAL + 2 * TRIAL_INTERVAL)]
    assert chosen.count(1) == len(chosen) - 3
    assert [number + 1 for number, levels in enumerate(chosen) if levels == 2] == [
        FIRST_TRIAL,
        FIRST_TRIAL + TRIAL_INTERVAL,
        FIRST_TRIAL + 2 * TRIAL_INTERVAL,
    ]


def test_one_level_is_tried_now_and_then_where_several_are_drawn() -> None:
    cost = learnt(0.0001)
    chosen = [cost.choose(8, 0.001, 1.0) for _ in range(FIRST_TRIAL + TRIAL_INTERVAL)]
    assert (chosen.count(8), chosen.count(1)) == (len(chosen) - 2, 2)


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(1e-4, 10.0), st.integers(1, 8))
def test_never_more_than_there_may_be_nor_several_that_are_dearer(
    level_s: float, alone_s: float, step_s: float, most: int
) -> None:
    levels = learnt(level_s).choose(most, alone_s, step_s)
    assert 1 <= levels <= most
    assert levels == 1 or level_s < alone_s * CHEAPER * 1.01


def test_a_trial_that_was_a_first_run_is_made_again_at_once_and_then_ever_later() -> None:
    cost, tried = LevelCost(), list[int]()
    for number in range(1, 2000):
        if cost.choose(8, 0.001, 1.0) == 2:
            tried.append(number)
            cost.skip()
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert tried[0] == FIRST_TRIAL and gaps[:10] == [1, 2, 4, 8, 16, 32, 64, 128, TRIAL_INTERVAL, TRIAL_INTERVAL]


def test_a_first_run_of_several_levels_that_was_no_trial_changes_nothing() -> None:
    cost = learnt(0.0001)
    chosen: list[int] = []
    for _ in range(FIRST_TRIAL - 1):
        chosen.append(cost.choose(8, 0.001, 1.0))
        cost.skip()
    assert chosen == [8] * len(chosen)
