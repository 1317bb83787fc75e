"""A verifier that fails at once is left alone for a while, then tried with one session, then trusted again."""

from __future__ import annotations

import pytest

from specsplit.clock import ManualClock
from specsplit_coordinator.members.breaker import FIRST_COOL_DOWN_S, LAST_COOL_DOWN_S, Breaker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_sound_verifier_takes_any_number_of_sessions(clock: ManualClock) -> None:
    breaker = Breaker(clock)
    assert not any(breaker.begin() for _ in range(3))
    assert breaker.admits


def test_after_the_cool_down_one_session_is_tried_at_a_time_and_its_success_closes_the_breaker(
    clock: ManualClock,
) -> None:
    breaker = Breaker(clock)
    breaker.failed()
    assert not breaker.admits
    clock.advance(FIRST_COOL_DOWN_S)
    assert breaker.admits
    assert breaker.begin()
    assert not breaker.admits, "the trial is under way"
    assert not breaker.begin(), "there is one trial at a time"
    breaker.end_trial()
    breaker.succeeded()
    assert breaker.admits
    assert not breaker.begin()


def test_each_failure_in_a_row_doubles_the_cool_down_up_to_a_limit(clock: ManualClock) -> None:
    breaker = Breaker(clock)
    waits: list[float] = []
    for _ in range(40):
        breaker.failed()
        waits.append(breaker.cool_down_s)
        clock.advance(breaker.cool_down_s)
    assert waits[:4] == [FIRST_COOL_DOWN_S * 2**i for i in range(4)]
    assert set(waits[10:]) == {LAST_COOL_DOWN_S}


def test_sessions_that_fail_together_count_as_one_failure(clock: ManualClock) -> None:
    breaker = Breaker(clock)
    for _ in range(16):
        breaker.failed()
    assert breaker.cool_down_s == FIRST_COOL_DOWN_S
