"""When a member comes back, and what it says. Time is turned by hand."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from specsplit.clock import ManualClock
from specsplit.errors import Unavailable
from specsplit.rpc.retry import FIRST_RETRY_S, LAST_RETRY_S, SETTLED_S, Retry
from specsplit.settings import CoordinatorSettings

GONE = Unavailable("gone")


def test_every_try_in_a_row_waits_longer_up_to_a_bound() -> None:
    retry = Retry(ManualClock())
    waits = [retry.failed(GONE) for _ in range(7)]
    assert waits == [FIRST_RETRY_S * 2**i for i in range(3)] + [LAST_RETRY_S] * 4


def test_a_member_that_nobody_hears_tries_often_enough_to_come_back_before_its_sessions_are_moved() -> None:
    lost_after_s = CoordinatorSettings(model=Path("unused")).lost_after_ms / 1000
    retry, tries, now_s = Retry(ManualClock()), list[float](), 0.0
    while (now_s := now_s + retry.failed(GONE)) < lost_after_s:
        tries.append(now_s)
    assert len(tries) == 5 and tries[-1] > lost_after_s - LAST_RETRY_S


def test_only_a_membership_that_has_lasted_begins_the_waiting_anew() -> None:
    clock = ManualClock()
    retry = Retry(clock)
    for lasts_s, waits_s in ((0.0, 0.1), (SETTLED_S - 0.1, 0.2), (SETTLED_S + 0.1, 0.1), (0.0, 0.2)):
        retry.entered()
        clock.advance(lasts_s)
        assert retry.failed(GONE) == waits_s
        clock.advance(SETTLED_S)  # time outside counts for nothing


def test_the_log_hears_what_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    retry = Retry(clock)
    retry.entered()
    for error in (GONE, GONE, Unavailable("other")):
        retry.failed(error)
    retry.entered()
    retry.failed(Unavailable("other"))
    retry.entered()
    clock.advance(SETTLED_S)
    retry.failed(Unavailable("other"))
    out, came = "not in the cluster, will retry: ", "joined the cluster"
    assert caplog.messages == [came, f"{out}gone", f"{out}other", came, f"{out}other"]


def test_the_last_word_of_a_member_that_flaps_is_that_it_is_out_until_it_has_stayed_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    retry = Retry(clock)
    for _ in range(20):
        retry.entered(member_id="m")
        retry.stays()
        clock.advance(retry.failed(GONE))
    out, came = "not in the cluster, will retry: gone", "joined the cluster"
    flaps = "not in the cluster, it comes in and falls out again, will retry: gone"
    assert caplog.messages == [came, out, came, flaps]
    retry.entered(member_id="m")
    clock.advance(SETTLED_S - 0.1)
    retry.stays()
    assert caplog.messages[4:] == []
    clock.advance(0.2)
    retry.stays()
    retry.stays()
    assert caplog.messages[4:] == [came] and {"member_id": "m"} in vars(caplog.records[-1]).values()
    assert retry.failed(GONE) == FIRST_RETRY_S
    assert caplog.messages[5:] == [out]
