"""The time between steps of a session, worked through by hand."""

from __future__ import annotations

from dataclasses import replace

from specsplit.observe.instruments import Histogram
from specsplit.values import Plan
from specsplit_verifier.records.step import SessionResult, StepResult
from specsplit_verifier.report.intervals import Intervals
from tests.verifier.results import STEP
from tests.verifier.test_arms import CHAIN


def step(ended: float, *sessions: int) -> StepResult:
    """A step that brought these sessions a token each."""
    results = [SessionResult(session, Plan(), CHAIN, range(1), 7, True, None, None) for session in sessions]
    return replace(STEP, ended=ended, sessions=results)


def test_a_step_ends_an_interval_of_every_session_that_had_one_before() -> None:
    histogram = Histogram([1.5, 2.5, 9.0])
    intervals = Intervals(histogram)
    for session in (1, 2):
        intervals.began(session)
    intervals.step(step(10.0, 1))  # the first tokens of 1
    intervals.step(step(11.0, 1, 2))  # an interval of 1, and the first tokens of 2
    intervals.step(step(13.0, 2))
    intervals.step(step(14.0, 1, 2))  # 1 has waited since 11
    assert (histogram.counts, histogram.total) == ([2, 1, 1, 0], 1.0 + 2.0 + 3.0 + 1.0)


def test_a_session_that_was_cancelled_while_a_step_ran_is_forgotten() -> None:
    histogram = Histogram([9.0])
    intervals = Intervals(histogram)
    intervals.began(1)
    intervals.step(step(1.0, 1))
    intervals.ended(1)
    intervals.step(step(2.0, 1))
    intervals.began(1)
    intervals.step(step(3.0, 1))
    assert histogram.counts == [0, 0]
