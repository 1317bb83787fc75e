"""How far a drafter may be, as `benchmarks distance` counts it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks.distance import loopback
from benchmarks.distance.virtual import PLACES, Place, level, line, measured, verdict
from benchmarks.harm import LAW


def test_the_line_worked_by_hand() -> None:
    assert line({0.0: 1.4, 5.0: 1.1, 10.0: 1.0, 20.0: 1.06}) == 5.0
    assert line({0.0: 1.04, 5.0: 2.0}) == "none"
    assert line({0.0: 1.05, 80.0: 1.05}) == 80.0


def test_first_choices_are_right_as_often_as_said_and_second_ones_in_half_of_the_others() -> None:
    drawn = random.Random(7)
    ranks = Counter(level(drawn, 0.7).rank for _ in range(20_000))
    assert ranks[0] == pytest.approx(14_000, rel=0.03)
    assert ranks[1] == pytest.approx(3_000, rel=0.06) and ranks[-1] == pytest.approx(3_000, rel=0.06)


def test_a_text_is_the_same_at_every_delay_and_for_all_runs() -> None:
    first, again = (Place(100.0, 5.0, 0.7).trace.requests for _ in range(2))
    assert first == again


def test_what_is_worth_having_nearby_costs_nothing_a_second_away() -> None:
    row = measured(Place(100.0, 5.0, 0.9), (0.0, 1000.0))
    assert float(str(row["at_0"])) > 2
    assert float(str(row["at_1000"])) >= LAW
    assert row["line_ms"] == 0.0
    assert "2 of 2 cells" in verdict([row], (0.0, 1000.0))


def test_every_place_lasts_long_enough_for_a_window() -> None:
    assert all(place.requests // place.callers * 400 * place.step_ms >= 30_000 for place in PLACES)


def test_a_real_drafter_that_costs_more_than_the_law_allows_is_told() -> None:
    rows = [
        {"step_ms": 10.0, "delay_ms": delay, "delay": f"{delay:g} ms", "share": share}
        for delay, share in ((loopback.NOBODY, 1.0), (0.0, 1.4), (40.0, LAW), (80.0, 0.9))
    ]
    told = "2 of 3 rows have 0.98 of no drafter's tokens/s or more (the least 0.900, at 80 ms and steps of 10 ms)."
    assert loopback.verdict(rows) == f"It never costs: {told}"
