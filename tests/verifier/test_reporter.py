"""What a verifier tells of its drafters: sums that fade, and how long is lately."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.clock import ManualClock
from specsplit.records import PlanRecord
from specsplit.values import Adaptive, Control, DrafterReport, Estimate, Load, Plan, SpeculationReport
from specsplit.wire.checks import check
from specsplit.wire.limits import MAX_MEMBERS
from specsplit.wire.speculation import MOST_SECONDS, report_from_wire, report_to_wire
from specsplit_verifier.engine.statistics import EngineStatistics
from specsplit_verifier.report.reporter import Reporter
from specsplit_verifier.sessions.drafter_record import FORGOTTEN, HALF_LIFE_S, DrafterRecord, Recently, RecordKey

ESTIMATE = Estimate(2.5, 0.02, 1e-4, 120.0, 100.0)
D = "d", False


def record(steps: float, accepted: float, hits: int = 0) -> DrafterRecord:
    return DrafterRecord(steps, accepted, hits, sessions=1)


@given(st.lists(st.tuples(st.floats(0, 60), st.integers(0, 100)), min_size=1, max_size=10), st.integers(1, 5))
def test_lately_is_the_same_however_often_one_looks_while_nothing_happens(
    happened: list[tuple[float, int]], looks: int
) -> None:
    often, rarely, now, steps = Recently(), Recently(), 0.0, 0
    for passed, fresh in happened:
        for i in range(1, looks):
            often.look({D: record(steps, 0)}, now + passed * i / looks)
        now, steps = now + passed, steps + fresh
        mine = often.look({D: record(steps, 0)}, now)
        theirs = rarely.look({D: record(steps, 0)}, now)
        assert mine[D].steps == pytest.approx(theirs[D].steps)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1, max_size=8), st.floats(0.1, 100))
def test_the_mean_lies_between_the_least_and_the_most_that_was_ever_accepted(
    happened: list[tuple[int, int]], every_s: float
) -> None:
    recently, now, seen = Recently(), 0.0, record(0, 0)
    for steps, accepted in happened:
        now, seen = now + every_s, record(seen.steps + steps, seen.accepted + (accepted if steps else 0))
        lately = recently.look({D: seen}, now)[D]
        if lately.steps > FORGOTTEN:
            means = [accepted / steps for steps, accepted in happened if steps]
            assert min(means) - 1e-6 <= lately.accepted / lately.steps <= max(means) + 1e-6


def test_half_of_it_counts_after_a_half_life_and_who_is_forgotten_is_left_out() -> None:
    recently = Recently()
    recently.look({D: record(8, 16)}, 0.0)
    assert recently.look({D: record(8, 16)}, HALF_LIFE_S)[D].steps == pytest.approx(4)
    gone = DrafterRecord(steps=8, accepted=16)
    assert D in recently.look({D: gone}, 2 * HALF_LIFE_S)
    assert D not in recently.look({D: gone}, 20 * HALF_LIFE_S)


def statistics(drafters: dict[RecordKey, DrafterRecord], estimate: Estimate | None = None) -> EngineStatistics:
    load = Load(sessions=1, free_pages=5, total_pages=8, steps=10, step_ms=20.0)
    return EngineStatistics(load, PlanRecord(Plan(num_steps=3), 1, estimate), drafters, token_s=1e-4)


def test_a_report_names_the_controller_its_estimate_and_every_drafter_that_has_a_name_the_most_used_first() -> None:
    first = DrafterRecord(sessions=2, steps=10, accepted=15, hits=9, held_s=0.5, round_trips=4, round_trip_s=0.1)
    drafters = {
        ("h:1", False): first,
        ("h:1", True): DrafterRecord(sessions=2, movable=1, steps=20, accepted=5, hits=1),
        ("h:2", False): DrafterRecord(sessions=1),
        ("gone:3", False): DrafterRecord(steps=10, accepted=20),
    }
    control, launched = Control(Adaptive.GOODPUT, 32), Plan(num_steps=5)
    reporter = Reporter(launched, lambda: statistics(drafters, ESTIMATE), lambda: control, ManualClock())
    reporter.names = {"h:1": "d1", "h:2": "d2"}
    assert reporter.report() == SpeculationReport(
        adaptive="goodput",
        max_draft_tokens=32,
        launched=launched,
        accept_length=2.0,
        hit_rate=0.25,
        step_s=0.02,
        token_s=1e-4,
        estimate=ESTIMATE,
        drafters=(
            DrafterReport("d1", 2, 20.0, 0.25, sampled=True, movable=1),
            DrafterReport("d1", 2, 10.0, 1.5, 0.05, 0.025),
            DrafterReport("d2", 1),
        ),
    )


def test_a_verifier_that_has_done_nothing_yet_says_so() -> None:
    reporter = Reporter(Plan(), lambda: statistics({}), lambda: Control(Adaptive.STATIC), ManualClock())
    assert reporter.report() == SpeculationReport("static", launched=Plan(), step_s=0.02, token_s=1e-4)


def test_of_more_drafters_than_a_heartbeat_may_name_the_least_used_are_left_out() -> None:
    drafters = {(f"h:{i}", False): DrafterRecord(sessions=1, steps=i + 1) for i in range(MAX_MEMBERS + 2)}
    reporter = Reporter(Plan(), lambda: statistics(drafters), lambda: Control(Adaptive.STATIC), ManualClock())
    reporter.names = {address: f"d{address}" for address, _ in drafters}
    message = report_to_wire(reporter.report())
    check(message)
    assert [each.steps for each in message.drafters] == list(range(MAX_MEMBERS + 2, 2, -1))


def test_a_longer_wait_than_a_report_can_hold_costs_the_verifier_not_its_place_in_the_cluster() -> None:
    slow = DrafterRecord(sessions=1, steps=1, held_s=7200.0, round_trips=1, round_trip_s=7200.0)
    reporter = Reporter(
        Plan(), lambda: statistics({("h:1", False): slow}), lambda: Control(Adaptive.STATIC), ManualClock()
    )
    reporter.names = {"h:1": "d1"}
    assert report_from_wire(report_to_wire(reporter.report())) == reporter.report()
    assert reporter.report().drafters == (DrafterReport("d1", 1, 1.0, 0.0, MOST_SECONDS, MOST_SECONDS),)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0])
def test_an_estimate_that_makes_no_sense_costs_the_verifier_not_its_place_in_the_cluster(odd: float) -> None:
    estimate = replace(ESTIMATE, static_rate=odd)
    reporter = Reporter(Plan(), lambda: statistics({}, estimate), lambda: Control(Adaptive.GOODPUT, 8), ManualClock())
    assert reporter.report().estimate is None
