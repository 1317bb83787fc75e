"""A paced step takes what the curve says, and no more if the work took longer."""

from __future__ import annotations

import pytest

from specsplit.clock import ManualClock
from specsplit.model import CostCurve, Paced


class Slept:
    """A clock, and the sleep that turns it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.times: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.times.append(seconds)
        self.clock.advance(seconds)


def test_the_curve_is_a_line_over_tokens() -> None:
    assert CostCurve(base_ms=20, per_token_us=50).seconds(16) == pytest.approx(0.0208)


def test_a_fast_step_sleeps_the_rest() -> None:
    sleep = Slept()
    with Paced(CostCurve(base_ms=20), sleep.clock, sleep).step(num_tokens=16):
        sleep.clock.advance(0.005)
    assert sleep.times == [pytest.approx(0.015)]
    assert sleep.clock.now() == pytest.approx(0.020)


def test_a_slow_step_does_not_sleep() -> None:
    sleep = Slept()
    with Paced(CostCurve(base_ms=20), sleep.clock, sleep).step(num_tokens=16):
        sleep.clock.advance(0.030)
    assert not sleep.times


def test_a_step_that_fails_does_not_sleep() -> None:
    sleep = Slept()
    with pytest.raises(RuntimeError), Paced(CostCurve(base_ms=20), sleep.clock, sleep).step(num_tokens=16):
        raise RuntimeError
    assert not sleep.times
