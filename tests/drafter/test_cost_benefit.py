"""What a node is worth, by hand; and when nodes are late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit_drafter.growth.acknowledgements import Acknowledgements
from specsplit_drafter.growth.cost_benefit import DEFAULT_ACCEPT_LENGTH, DEFAULT_STEP_S, HIGHEST_FLOOR, CostBenefit
from specsplit_drafter.growth.usage import Usage


def after_commits(cost_benefit: CostBenefit, tokens: int, count: int = 200) -> CostBenefit:
    for _ in range(count):
        cost_benefit.observe_commit(tokens, hit=True)
    return cost_benefit


def test_the_worked_example_has_a_floor_of_two_in_ten_thousand() -> None:
    assert after_commits(CostBenefit(1e-6, step_us=20_000), tokens=4).floor == pytest.approx(0.0002)


def test_a_verifier_that_does_not_say_how_long_its_steps_take_is_guessed_at() -> None:
    cost_benefit = CostBenefit(3e-6)
    cost_benefit.set_step_time(0)
    assert cost_benefit.floor == pytest.approx(3e-6 * DEFAULT_ACCEPT_LENGTH / DEFAULT_STEP_S)
    cost_benefit.set_step_time(2_000)
    assert cost_benefit.floor == pytest.approx(3e-6 * DEFAULT_ACCEPT_LENGTH / 0.002)


@pytest.mark.parametrize(("step_us", "step_s"), [(1, 0.0005), (500, 0.0005), (1_000_000, 1.0), (2**32 - 1, 1.0)])
def test_a_verifier_that_exaggerates_how_long_its_steps_take_is_believed_within_bounds(
    step_us: int, step_s: float
) -> None:
    assert CostBenefit(3e-6, step_us).step_s == step_s
    cost_benefit = CostBenefit(3e-6)
    cost_benefit.set_step_time(step_us)
    assert cost_benefit.token_s == pytest.approx(step_s / DEFAULT_ACCEPT_LENGTH)


@given(st.integers(1, 10**7), st.integers(1, 30))
def test_the_floor_is_lower_where_steps_are_longer_and_commit_less(step_us: int, tokens: int) -> None:
    floor = after_commits(CostBenefit(3e-6, step_us), tokens).floor
    assert after_commits(CostBenefit(3e-6, 2 * step_us), tokens).floor <= floor
    assert after_commits(CostBenefit(3e-6, step_us), tokens + 1).floor >= floor
    assert 0.0 < floor <= HIGHEST_FLOOR


def test_an_expansion_has_to_bring_a_hundredth_of_its_time_and_more_where_it_may_delay_an_answer() -> None:
    cost_benefit = after_commits(CostBenefit(3e-6, step_us=20_000), tokens=4)  # no misses: a delay costs nothing
    assert cost_benefit.pays(0.000021, 0.002)
    assert not cost_benefit.pays(0.000019, 0.002)
    missing = CostBenefit(3e-6, step_us=3_000)
    for _ in range(200):
        missing.observe_commit(1, hit=False)
    assert missing.pays(0.0016, 0.003)  # half of the expansion, after every commit
    assert not missing.pays(0.0014, 0.003)


def sharing(contention: float, usage: Usage | None = None) -> CostBenefit:
    """Steps of 20 ms that commit 4 tokens, as in the worked example: a token saves 5 ms."""
    return after_commits(CostBenefit(1e-6, 20_000, contention, usage), tokens=4)


@pytest.mark.parametrize(("contention", "least_uses"), [(0.0, 0.004), (0.5, 1 / 3), (1.0, 0.5), (0.1, 1 / 11)])
def test_on_shared_cores_an_expansion_has_to_bring_what_it_takes_and_not_do_better_to_wait(
    contention: float, least_uses: float
) -> None:
    cost_benefit = sharing(contention)
    assert cost_benefit.pays(1.01 * least_uses * cost_benefit.token_s, 0.002)
    assert not cost_benefit.pays(0.99 * least_uses * cost_benefit.token_s, 0.002)
    # An expansion of 20 ms takes more than its uses save unless there are four of them, by the share.
    assert cost_benefit.pays(1.01 * 0.020 * max(contention, 0.01), 0.020)
    assert not cost_benefit.pays(0.99 * 0.020 * max(contention, 0.01), 0.020)


def test_what_was_promised_and_did_not_come_makes_expansions_dearer_on_shared_cores_alone() -> None:
    usage = Usage()
    alone, shared = sharing(0.0, usage), sharing(0.5, usage)
    saved_s = 0.5 * alone.token_s
    assert alone.pays(saved_s, 0.002) and shared.pays(saved_s, 0.002)
    for _ in range(100):
        usage.begin()
        usage.draw(np.array([5]), np.array([0.9]))
    assert usage.ratio < 0.1
    assert alone.pays(saved_s, 0.002) and not shared.pays(saved_s, 0.002)
    for _ in range(500):
        usage.begin()  # roots alone, which are used
        usage.use(int(usage.draw(np.array([0]), np.array([1.0]))[0]))
    assert usage.ratio > 0.9, "what has not been tried for long is tried again"
    assert shared.pays(saved_s, 0.002)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.1), st.floats(1e-6, 0.1), st.integers(500, 100_000))
def test_more_sharing_never_makes_more_expansions_pay(
    one: float, other: float, saved_s: float, expansion_s: float, step_us: int
) -> None:
    least, most = (CostBenefit(1e-6, step_us, share) for share in sorted((one, other)))
    assert least.pays(saved_s, expansion_s) or not most.pays(saved_s, expansion_s)


def test_the_round_trip_is_the_least_time_from_a_grow_to_a_commit_that_has_seen_it() -> None:
    acknowledgements = Acknowledgements()
    for number, (left, heard) in enumerate([(0.0, 0.030), (0.1, 0.112), (0.2, 0.250)], start=1):
        acknowledgements.record_sent(number, left)
        assert acknowledgements.acknowledge(number, heard) == 0.0
    assert acknowledgements.round_trip_s == pytest.approx(0.012)


def test_nodes_are_late_that_were_sent_longer_ago_than_a_round_trip_and_had_not_come() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.record_sent(1, 0.0)
    assert acknowledgements.acknowledge(1, 0.010) == 0.0  # the round trip
    acknowledgements.record_sent(5, 1.000)
    acknowledgements.record_sent(9, 1.002)
    assert acknowledgements.acknowledge(1, 1.008) == 0.0  # on its way
    assert acknowledgements.acknowledge(5, 1.030) == pytest.approx(0.018)  # 9 left 28 ms ago


def test_of_a_verifier_that_names_no_id_nothing_is_late() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.record_sent(1, 0.0)
    assert acknowledgements.acknowledge(0, 9.0) == 0.0
    assert acknowledgements.round_trip_s == 0.0


def test_nodes_become_dearer_while_they_are_late_and_as_cheap_as_before_when_they_are_not() -> None:
    cost_benefit = CostBenefit(3e-6, step_us=20_000)
    cost_benefit.acknowledgements.record_sent(1, 0.0)
    cost_benefit.acknowledge(1, 0.010)
    usual = cost_benefit.floor
    cost_benefit.acknowledgements.record_sent(2, 1.0)
    cost_benefit.acknowledge(1, 1.1)
    assert cost_benefit.floor == pytest.approx(1.5 * usual)
    for number in range(100):
        cost_benefit.acknowledge(1, 2.0 + number)
    assert cost_benefit.floor == HIGHEST_FLOOR
    for number in range(1000):
        cost_benefit.acknowledge(2, 200.0 + number)
    assert cost_benefit.floor == pytest.approx(usual)


def test_a_verifier_may_name_an_id_that_was_never_sent() -> None:
    cost_benefit = CostBenefit(3e-6, step_us=20_000)
    cost_benefit.acknowledgements.record_sent(1, 0.0)
    cost_benefit.acknowledge(2**63, 0.5)
    assert cost_benefit.floor == pytest.approx(3e-6 * DEFAULT_ACCEPT_LENGTH / 0.020)
