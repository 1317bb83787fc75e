"""When the verifier waits for a drafter, and what it believes a step costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import SpecsplitError
from specsplit.speculation import Draft
from specsplit.values import Plan
from specsplit_verifier.policy.cost import StepCost, solved
from specsplit_verifier.policy.planner import Planner
from specsplit_verifier.sessions.wait_policy import Wait, WaitPolicy, worth_waiting
from tests.verifier.results import STEP

PLAN = Plan(wait_budget_us=20_000)


def missed(at: float = 0.0) -> Wait:
    wait = Wait()
    wait.restart(at, hit=False)
    wait.look(Draft.root_alone(7, 0))
    return wait


def waits(wait_policy: WaitPolicy, wait: Wait | None = None, now: float = 0.0, *, caught_up: bool = False) -> bool:
    """Tell whether a lone session waits rather than steps with its root alone, which takes 20 ms."""
    prospect = wait_policy.prospect(wait or missed(), now, PLAN, caught_up)
    return prospect is not None and worth_waiting([prospect], price=1 / 0.02) is not None


@pytest.mark.parametrize(
    ("heard", "waited"),
    [
        pytest.param(lambda policy, at: policy.first_grow(missed(at), at + 0.002, expected=2.5), True, id="quick"),
        pytest.param(lambda policy, at: policy.first_grow(missed(at), at + 0.1, expected=2.5), False, id="slower than a step"),
        pytest.param(lambda policy, at: policy.in_vain(missed(at), at + 0.02), False, id="asleep"),
    ],
)  # fmt: skip
def test_after_a_miss_a_drafter_is_waited_for_if_it_is_quick(
    heard: Callable[[WaitPolicy, float], object], waited: bool
) -> None:
    wait_policy = WaitPolicy()
    for at in range(30):
        heard(wait_policy, at)
    assert waits(wait_policy) is waited


def test_a_drafter_that_only_answers_late_is_timed_all_the_same() -> None:
    wait_policy = WaitPolicy()
    for _ in range(100):
        wait_policy.late_grow(missed(), 0.1)
    assert not waits(wait_policy)
    for _ in range(100):
        wait_policy.late_grow(missed(), 0.001)
    assert waits(wait_policy)


@given(st.floats(0, 0.1), st.booleans())
def test_the_wait_never_exceeds_its_budget(elapsed: float, caught_up: bool) -> None:
    prospect = WaitPolicy().prospect(missed(), elapsed, PLAN, caught_up)
    assert (prospect is None) is (elapsed >= 0.02)
    assert prospect is None or prospect.left_s <= 0.02 - elapsed


def test_waiting_stops_when_the_gain_per_second_falls_below_stepping() -> None:
    wait_policy = WaitPolicy()
    wait = missed()
    wait_policy.first_grow(wait, 0.002, expected=1.9)
    for number in range(40):
        wait_policy.later_grow(wait, 0.004 + 0.004 * number, expected=1.91)
        wait.since = wait.last
    assert not waits(wait_policy, wait, wait.last, caught_up=True)


def test_step_cost_learns_a_line() -> None:
    cost = StepCost()
    for _ in range(40):
        for tokens in (1, 16, 64):
            cost.observe(tokens, 0, 0.010 + 0.0001 * tokens)
    for tokens in (1, 32, 64):
        assert abs(cost.predict(tokens) - (0.010 + 0.0001 * tokens)) < 2e-4


def test_step_cost_of_one_size_is_its_mean() -> None:
    cost = StepCost()
    for _ in range(500):
        cost.observe(16, 0, 0.02)
    assert abs(cost.predict(16) - 0.02) < 1e-4
    assert cost.predict(1) > 0


@pytest.mark.parametrize("size", [1, 5, 32])
def test_step_cost_keeps_what_tokens_cost_through_steps_of_one_size(size: int) -> None:
    cost = StepCost()
    for tokens in (1, 16, 64, 128):
        for _ in range(3):
            cost.observe(tokens, 0, 0.060 + 0.002 * tokens)
    for _ in range(4000):
        cost.observe(size, 0, 0.060 + 0.002 * size)
    assert cost.token_s == pytest.approx(0.002, rel=0.05)
    assert cost.predict(24) == pytest.approx(0.060 + 0.002 * 24, rel=0.05)


def test_step_cost_tells_what_tokens_cost_from_what_kv_costs() -> None:
    cost, tokens = StepCost(), [1, 16, 64, 8, 96, 2]
    for step in range(600):
        size, kv = tokens[step % 6], 2000 + 500 * (step % 5)
        cost.observe(size, kv, 0.006 + 20e-6 * size + 40e-9 * kv)
    assert cost.token_s == pytest.approx(20e-6, rel=0.05)
    assert cost.predict(32, 10_000) == pytest.approx(0.006 + 20e-6 * 32 + 40e-9 * 10_000, rel=0.05)


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_steps_that_took_no_time_leave_a_prediction_that_is_finite_and_positive(count: int) -> None:
    cost = StepCost()
    for _ in range(count):
        cost.observe(17, 16_384, 0.0)
        assert 0.0 < cost.predict(17, 16_384) < 1e-3
    for _ in range(5):
        before = cost.predict(17, 16_384)
        cost.observe(17, 16_384, 5.0)
        assert before < cost.predict(17, 16_384) < 5.0


def test_one_step_that_took_no_time_is_forgotten_like_any_other() -> None:
    cost = StepCost()
    for seconds in (*[5.0] * 100, 0.0, *[5.0] * 300):
        cost.observe(17, 16_384, seconds)
    assert cost.predict(17, 16_384) == pytest.approx(5.0, rel=0.2)


def test_a_step_that_failed_teaches_no_cost() -> None:
    planner = Planner(PLAN, 512)
    step = replace(STEP, tokens=17, forward_us=2000.0)
    planner.observe(step)
    learnt = planner.cost.mean_s
    planner.observe(replace(step, failed={1: SpecsplitError("out of memory")}, forward_us=9e6))
    assert planner.cost.mean_s == learnt == pytest.approx(0.002)


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 100_000), st.floats(0.0, 1000.0)), max_size=30))
def test_no_step_is_believed_to_be_cheaper_for_having_more_tokens(steps: list[tuple[int, int, float]]) -> None:
    cost = StepCost()
    for tokens, kv_tokens, seconds in steps:
        cost.observe(tokens, kv_tokens, seconds)
    assert 0.0 <= cost.token_s < math.inf
    assert 0.0 < cost.predict(1, 100) <= cost.predict(64, 100) <= cost.predict(64, 5000) < math.inf


@given(
    st.lists(st.floats(-10.0, 10.0), min_size=9, max_size=9), st.lists(st.floats(-10.0, 10.0), min_size=3, max_size=3)
)
def test_three_terms_are_solved_for_as_numpy_does(factor: list[float], right: list[float]) -> None:
    half = np.array(factor).reshape(3, 3)
    left = half @ half.T + np.eye(3)
    (aa, ab, ac), (_, bb, bc), (_, _, cc) = left.tolist()
    found = solved((aa, ab, ac, bb, bc, cc), (right[0], right[1], right[2]))
    assert found == pytest.approx(np.linalg.solve(left, right).tolist(), rel=1e-6, abs=1e-6)


def test_what_cannot_be_told_apart_is_not_solved_for() -> None:
    assert solved((1.0, 1.0, 0.0, 1.0, 0.0, 1.0), (1.0, 1.0, 1.0)) is None
