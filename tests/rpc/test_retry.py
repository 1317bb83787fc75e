"""When a member comes back, and what it says. Time is turned by hand."""

from __future__ import annotations

import logging

import pytest

from specsplit.clock import ManualClock
from specsplit.errors import Unavailable
from specsplit.rpc.retry import FIRST_RETRY_S, LAST_RETRY_S, SETTLED_S, Retry

GONE = Unavailable("gone")


def test_every_try_in_a_row_waits_longer_up_to_a_bound() -> None:
    retry = Retry(ManualClock())
    waits = [retry.failed(GONE) for _ in range(7)]
    assert waits == [FIRST_RETRY_S * 2**i for i in range(5)] + [LAST_RETRY_S] * 2


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
