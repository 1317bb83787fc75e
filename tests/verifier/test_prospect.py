"""Whether to wait for what drafters may still bring, and which part of what was hoped for came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.speculation import Grow, Mirror
from specsplit.values import Plan
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.tree_limits import TreeLimits
from specsplit_verifier.sessions.wait_policy import (
    GROWS,
    Prospect,
    Share,
    Trust,
    Wait,
    Waiting,
    WaitPolicy,
    worth_waiting,
)

PLAN = Plan()
AT_REST = TreeLimits(8, 3, 0)

PROSPECTS = st.lists(
    st.builds(
        Prospect, st.floats(1e-4, 0.1), st.floats(0.0, 2.0), st.floats(1e-4, 0.1), st.floats(0.0, 1.0), st.floats(0, 1)
    ),
    min_size=1,
    max_size=4,
)


def test_two_grows_may_be_worth_a_wait_that_the_first_of_them_is_not() -> None:
    """Worked out by hand: a step of 20 ms has 1 token in hand, so a second costs 50 of them."""
    first = Prospect(0.02, 0.9, 0.002, 1.0, 1.0)
    waiting = worth_waiting([first], 50.0)
    assert waiting is not None and waiting.look_s == 0.02
    assert waiting.seconds == pytest.approx(0.02 + 7 * 0.002), "all eight that are looked ahead to"
    assert waiting.gain == pytest.approx(8 * 0.9)
    assert worth_waiting([first._replace(more=0.0)], 50.0) is None, "0.9 tokens in 20 ms, and nothing behind them"


def test_what_comes_for_others_is_counted_together() -> None:
    one = Prospect(0.01, 0.3, 1.0, 0.0, 1.0)
    assert worth_waiting([one], 50.0) is None
    assert worth_waiting([one, one], 50.0) is not None


@given(PROSPECTS, st.floats(1.0, 1000.0))
def test_a_wait_is_decided_for_exactly_if_some_moment_brings_more_than_it_costs(
    prospects: list[Prospect], price: float
) -> None:
    def brought(until: float) -> float:
        return sum(
            each.gain * each.more**grow
            for each in prospects
            for grow in range(GROWS)
            if each.next_s + grow * each.every_s <= min(until, each.left_s)
        )

    moments = [each.next_s + grow * each.every_s for each in prospects for grow in range(GROWS)]
    surplus = max(brought(moment) - price * moment for moment in moments)
    waiting = worth_waiting(prospects, price)
    if waiting is None:
        assert surplus <= 1e-9
    else:
        assert waiting.gain - price * waiting.seconds == pytest.approx(surplus, abs=1e-9)
        assert waiting.look_s > 0.0
        assert waiting.seconds <= max(each.left_s for each in prospects), "no longer than somebody may wait"


@given(PROSPECTS, st.floats(1.0, 1000.0), st.floats(0.0, 1.0))
def test_less_trust_never_waits_where_more_does_not(prospects: list[Prospect], price: float, trust: float) -> None:
    if worth_waiting(prospects, price) is None:
        assert worth_waiting(prospects, price, trust) is None


def test_nobody_is_waited_for_where_nobody_drafts() -> None:
    assert worth_waiting([], 50.0) is None


def test_trust_falls_with_what_does_not_come_and_comes_back_by_itself() -> None:
    trust, hoped = Trust(), Waiting(0.01, 0.02, 1.0)
    assert trust.share == 1.0
    for _ in range(50):
        trust.waited(hoped, 0.02, 0.1)
    assert trust.share == pytest.approx(0.1, abs=0.05)
    for _ in range(500):
        trust.unwanted()
    assert trust.share > 0.9
    for _ in range(50):
        trust.waited(hoped, 0.02, 5.0)
    assert trust.share == 1.0, "what comes beyond what was hoped for is no reason to hope for more than was seen"


def test_what_a_drafter_at_rest_answers_teaches_nothing_of_how_long_one_takes() -> None:
    policy = WaitPolicy()
    usual = policy.prospect(Wait(), 0.0, PLAN, caught_up=False)
    drafter = DraftSession("drafter", Mirror(1, 1, 0, 50, 100), policy)
    drafter.begin(0, 0.0)
    for number in range(1, 40):
        draft = drafter.take(0, number - 1, AT_REST)
        reroot = drafter.commit(draft, Accepted((0,), 7), float(number))
        assert reroot.rested is (number > 1)
        drafter.grow(Grow(number, resting=True), number + 0.0001)
        drafter.apply_grows(AT_REST, prefilling=False)
    assert policy.prospect(Wait(), 0.0, PLAN, caught_up=False) == usual


def test_a_share_is_drawn_from_its_guess_to_what_is_seen() -> None:
    share = Share(1.0)
    assert share.mean == 1.0
    share.observe(0.0, 5.0)
    assert share.mean == pytest.approx(0.5)
    for _ in range(300):
        share.observe(0.2, 1.0)
    assert share.mean == pytest.approx(0.32, abs=0.02)
