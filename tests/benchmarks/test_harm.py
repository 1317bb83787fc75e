"""What a drafter costs, as `benchmarks harm` counts it, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harm import (
    CASES,
    LAW,
    LOOKUP,
    Harm,
    good_later,
    least,
    measured,
    one_in_ten,
    repeating,
    useless,
    verdict,
)
from benchmarks.lab.cost import ExpansionCurve
from benchmarks.report import Row

GAPS_AND_TOKENS = st.lists(st.tuples(st.floats(0.01, 5.0), st.integers(1, 9)), min_size=2, max_size=40)


def test_the_poorest_stretch_worked_by_hand() -> None:
    steps = [(0.0, 9), (1.0, 2), (2.0, 2), (4.0, 2)]
    assert least(steps, 2.0) == pytest.approx(1.0)
    assert least(steps, 3.0) == pytest.approx(4 / 3)
    assert least(steps, 30.0) == pytest.approx(6 / 4)


@given(GAPS_AND_TOKENS, st.floats(0.1, 20.0))
def test_the_poorest_stretch_is_no_poorer_than_the_slowest_step_and_all_of_a_run_is_its_mean(
    gaps: list[tuple[float, int]], seconds: float
) -> None:
    ends = list(accumulate(gap for gap, _ in gaps))
    steps = list(zip(ends, (tokens for _, tokens in gaps), strict=True))
    rates = [tokens / gap for gap, tokens in gaps[1:]]
    assert min(rates) * (1 - 1e-6) <= least(steps, seconds) <= max(rates) * (1 + 1e-6)
    mean = sum(tokens for _, tokens in steps[1:]) / (ends[-1] - ends[0])
    assert least(steps, 1e6) == pytest.approx(mean)


def test_a_drafter_that_takes_no_cores_and_brings_nothing_costs_little() -> None:
    row = measured(Harm("useless", useless, tokens=120))
    assert 0.9 < float(str(row["least"])) <= 1.0
    assert row["cores"] == "its own"


def test_a_drafter_that_takes_cores_without_being_told_costs_what_it_takes() -> None:
    # An expansion that never ends halves the speed of the verifier's two cores, from the first step to the last.
    endless = Harm("endless", useless, ExpansionCurve(1e6), shared_cores=2, told=False, tokens=40)
    row = measured(endless)
    assert row["cores"] == "one of the verifier's 2, not told"
    assert float(str(row["least"])) == pytest.approx(0.5, abs=0.03)
    assert row["expansions"] == pytest.approx(1 / 40)


@pytest.mark.parametrize("expansion", [ExpansionCurve(10.0), ExpansionCurve(300.0)])
def test_drafters_that_take_cores_and_bring_nothing_rest_where_that_is_tried(expansion: ExpansionCurve) -> None:
    row = measured(Harm("useless", useless, expansion, shared_cores=2, told=False, tokens=600))
    assert float(str(row["least_trials"])) > 0.97 > float(str(row["least"]))
    assert float(str(row["expansions_trials"])) < 0.2


def test_a_drafter_without_a_model_keeps_what_it_brings_where_rests_are_tried() -> None:
    turns = [repeating(place) for place in (150, 60)]
    assert all(len(set(turn.output[:place])) == place for turn, place in zip(turns, (150, 60), strict=True))
    row = measured(Harm("n-gram", useless, LOOKUP, shared_cores=2, turns=turns))
    without, trials = float(str(row["whole"])), float(str(row["whole_trials"]))
    assert without > 1.5 and trials - 1 > 0.95 * (without - 1)


def test_drafters_are_good_where_they_are_said_to_be() -> None:
    assert [good_later(0, token) for token in (0, 63, 64)] == [False, False, True]
    assert [session for session in range(25) if one_in_ten(session, 5)] == [9, 19]


def test_the_verdict_counts_the_rows_that_hold_to_the_law() -> None:
    rows: list[Row] = [{"least": LAW, "least_trials": 1.2}, {"least": LAW - 0.001, "least_trials": LAW}]
    assert "1 of 2 rows have it, and 2 with `rest_trials`" in verdict(rows)


def test_every_case_has_a_row_of_its_own() -> None:
    assert len({(case.name, case.cores) for case in CASES}) == len(CASES)
    assert replace(CASES[0], shared_cores=4).cores == "one of the verifier's 4, told"
