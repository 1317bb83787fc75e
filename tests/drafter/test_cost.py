"""What expansions cost, how wide they should be for that, and how many go into one message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.records import Eager, GraphStatistics
from specsplit_drafter.growth.cost import (
    MOST_PER_MESSAGE,
    ExpansionCost,
    LinearCost,
    best_width,
    expansions_per_message,
)

survivals = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40).map(lambda each: np.array(sorted(each)[::-1]))
lines = st.builds(LinearCost, st.floats(1e-5, 0.1), st.floats(1e-7, 0.01))


def learnt(*seen: tuple[int, float]) -> ExpansionCost:
    expansions = ExpansionCost()
    for rows, seconds in seen:
        expansions.rows = rows
        expansions.observe(seconds)
    return expansions


def test_the_worked_example_expands_two_nodes() -> None:
    assert best_width(np.array([0.9, 0.5, 0.1]), LinearCost(0.001, 0.0001)) == 2


@given(survivals, lines)
def test_no_other_width_brings_more_survival_per_second(each: np.ndarray, line: LinearCost) -> None:
    rates = [each[:width].sum() / line.seconds(width) for width in range(1, len(each) + 1)]
    assert rates[best_width(each, line) - 1] == pytest.approx(max(rates))


@given(survivals, lines, st.floats(1.0, 100.0))
def test_the_dearer_an_expansion_as_such_the_wider_it_is(each: np.ndarray, line: LinearCost, factor: float) -> None:
    assert best_width(each, line) <= best_width(each, line._replace(base_s=line.base_s * factor))


@pytest.mark.parametrize(("reason", "counted"), [(Eager.FIRST, False), (Eager.FULL, True), (Eager.BIAS, True)])
def test_what_a_descent_without_a_graph_costs_is_learnt_unless_the_next_one_has_one(
    reason: Eager, counted: bool
) -> None:
    expansions = learnt((64, 0.002))
    expansions.rows, expansions.levels, expansions.useful_levels = 64, 3, 2
    for seconds, before in ((0.9, {}), (0.006, {reason: 1})):  # the first is that of its size
        now = GraphStatistics(3, eager={reason: before.get(reason, 0) + 1})
        expansions.observe_run(seconds, GraphStatistics(3, eager=before), now)
    assert expansions.level_cost.level_s == (pytest.approx(0.002) if counted else None)


@given(survivals, st.floats(0.0, 0.1))
def test_where_a_node_more_costs_nothing_all_are_expanded(each: np.ndarray, base_s: float) -> None:
    assert best_width(each, LinearCost(base_s, 0.0)) == len(each)


def test_a_line_is_learnt_from_expansions_of_several_widths() -> None:
    line = learnt(*[(rows, 0.002 + 0.00003 * rows) for rows in (1, 64, 20, 512, 3)]).line
    assert line.base_s == pytest.approx(0.002)
    assert line.row_s == pytest.approx(0.00003)


def test_from_equal_widths_no_slope_is_learnt_and_the_time_is_the_mean() -> None:
    assert learnt().line == LinearCost(0.0, 0.0)
    assert learnt((64, 0.002), (64, 0.002)).line.seconds(1000) == pytest.approx(0.002)


@given(st.lists(st.tuples(st.integers(0, 600), st.floats(0.0, 1.0)), min_size=1, max_size=20))
def test_no_line_promises_an_expansion_in_less_than_no_time(seen: list[tuple[int, float]]) -> None:
    line = learnt(*seen).line
    assert line.base_s >= -1e-9
    assert line.row_s >= 0.0


@pytest.mark.parametrize(
    ("step_s", "mean_s", "levels"),
    [(0.020, 0.0002, 5), (0.020, 0.002, 1), (0.020, None, 1), (0.0, 0.002, 1), (0.020, 0.0, MOST_PER_MESSAGE)],
)
def test_a_message_tells_of_as_many_expansions_as_fit_into_a_twentieth_of_a_step(
    step_s: float, mean_s: float | None, levels: int
) -> None:
    assert expansions_per_message(step_s, mean_s) == levels
