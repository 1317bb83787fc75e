"""Why steps had no drafts: what is counted of them, what is told of that, and in which words."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.speculation import Grow
from specsplit.values import Adaptive, Control, Endpoint, NoDrafts, NoDraftsCause, Plan, PlanChanges
from specsplit_verifier.policy.account import Account
from specsplit_verifier.policy.adaptive.choice import controller_for
from specsplit_verifier.policy.budget import Line, fixed, spend
from specsplit_verifier.policy.planner import Planner
from specsplit_verifier.records.undrafted import MOSTLY, Undrafted
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.session import Session, StopRule
from tests.support.sessions import drafting_for, session_of

PRICE = NoDrafts(NoDraftsCause.PRICE, 4, 1.9, 1.4)
causes = st.sampled_from(NoDraftsCause)


def counted(*steps: NoDraftsCause | None) -> Undrafted:
    undrafted = Undrafted()
    for step in steps:
        undrafted.step(step)
    return undrafted


@given(st.lists(st.none() | causes), st.booleans())
def test_a_reason_is_told_where_most_steps_had_no_drafts_and_says_whether_some_had(
    steps: list[NoDraftsCause | None], planned: bool
) -> None:
    without = [step for step in steps if step is not None]
    told = counted(*steps).reason(None, planned=planned)
    assert (told is not None) == (bool(without) and len(without) >= MOSTLY * len(steps))
    if told is not None:
        assert told.rarely == (len(without) < len(steps))


@given(st.lists(causes, min_size=1))
def test_the_reason_is_what_most_of_the_steps_without_drafts_had_none_for(steps: list[NoDraftsCause]) -> None:
    told = counted(*steps).reason(PRICE, planned=False)
    assert told is not None
    often = {cause: steps.count(cause) for cause in NoDraftsCause}
    assert often[told.cause] == max(often.values()) or often[NoDraftsCause.RESTING] == max(often.values())
    assert (told == PRICE) == (told.cause is NoDraftsCause.PRICE)


def test_a_rest_is_told_as_what_led_to_it() -> None:
    rest = [NoDraftsCause.RESTING] * 64
    for cause in (NoDraftsCause.PRICE, NoDraftsCause.EMPTY, NoDraftsCause.MEMORY):
        told = counted(*[cause] * 32, *rest).reason(None, planned=False)
        assert told is not None and told.cause is cause
    for planned, cause in ((True, NoDraftsCause.PLAN), (False, NoDraftsCause.RESTING)):
        told = counted(*rest).reason(PRICE, planned=planned)
        assert told is not None and told.cause is cause


def test_what_a_verifier_counts_is_of_lately() -> None:
    undrafted = Undrafted(16)
    for _ in range(1000):
        undrafted.step(NoDraftsCause.LATE)
    for _ in range(40):
        undrafted.step(None)
    assert undrafted.reason(None, planned=False) is None
    for _ in range(100):
        undrafted.step(NoDraftsCause.EMPTY)
    told = undrafted.reason(None, planned=False)
    assert told is not None and told.cause is NoDraftsCause.EMPTY


def session(request: DecodeRequest, plan: Plan | None = None) -> Session:
    made = session_of(1, request, plan)
    made.table.reserve(16)
    made.drafter = NoDrafter(needed=request.drafter is not None)
    return made


AT = Endpoint("d1", "h:1")


def test_who_has_no_drafter_says_why() -> None:
    assert session(DecodeRequest("r", (1,))).undrafted is NoDraftsCause.REQUEST, "nobody asked for one"
    for wish in (PlanChanges(num_steps=0), PlanChanges(num_draft_tokens=1)):
        assert session(DecodeRequest("r", (1,), plan=wish, drafter=AT)).undrafted is NoDraftsCause.REQUEST
    assert session(DecodeRequest("r", (1,), any_drafter=True)).undrafted is NoDraftsCause.NO_DRAFTER
    lost = session(DecodeRequest("r", (1,), drafter=AT))
    assert lost.undrafted is NoDraftsCause.NO_DRAFTER
    lost.drafter = NoDrafter(needed=False)
    assert lost.undrafted is NoDraftsCause.REFUSED
    assert session(DecodeRequest("r", (1,), drafter=AT), Plan(num_steps=0)).undrafted is NoDraftsCause.PLAN


def test_who_has_a_drafter_says_what_it_had_for_the_step() -> None:
    made = session(DecodeRequest("r", (1,), drafter=AT), Plan(draft_ahead=False))
    drafter = made.drafter = drafting_for(address="h:1")
    drafter.begin(0, now=0.0)
    assert made.undrafted is NoDraftsCause.LATE
    drafter.mirror.grow(Grow(0, resting=True))
    assert made.undrafted is NoDraftsCause.EMPTY
    drafter.mirror.grow(Grow(0, (1,), (0,), (7,), (-0.5,), resting=True))
    assert made.undrafted is NoDraftsCause.PRICE
    made.stops = StopRule(1)
    assert made.undrafted is NoDraftsCause.ROOM
    made.plan = Plan(num_steps=0)
    assert made.undrafted is NoDraftsCause.RESTING


def test_the_price_is_what_the_launched_plan_would_verify_where_the_best_step_verifies_nothing() -> None:
    account, line = Account(), Line(0.004, 0.001)
    survivals = [[0.1, 0.1, 0.1, 0.1]]
    bare, launched = spend(survivals, line), fixed(survivals, line, 4)
    assert bare.nodes == [0]
    account.weighed(bare, launched, line)
    price = account.price
    assert price is not None and (price.cause, price.nodes) == (NoDraftsCause.PRICE, 4)
    assert price.cost_ratio == pytest.approx(9 / 5) and price.tokens == pytest.approx(1.4)
    assert price.sentence == "no drafts: a step with 4 nodes costs 1.8 times one without, and 1.4 tokens are expected"


shares = st.lists(st.floats(0, 1), min_size=1, max_size=6).map(lambda row: sorted(row, reverse=True))


@given(st.lists(shares, min_size=1, max_size=4), st.floats(1e-4, 1), st.floats(0, 1))
def test_a_price_that_is_told_is_one_that_did_not_pay(
    sessions: list[list[float]], base_s: float, token_s: float
) -> None:
    account, line = Account(), Line(base_s, token_s)
    bare = spend(sessions, line)
    account.weighed(bare, fixed(sessions, line, 8), line)
    assert (account.price is not None) == (not any(bare.nodes))
    if account.price is not None:
        assert account.price.tokens <= account.price.cost_ratio * (1 + 1e-6)


def test_a_planner_tells_of_the_plan_in_force_where_that_has_no_drafts(tmp_path: Path) -> None:
    settings = VerifierSettings(model=tmp_path, adaptive=Adaptive.GOODPUT)
    planner = Planner(settings.plan, 100, partial(controller_for, settings))
    resting = counted(NoDraftsCause.RESTING)
    for changes, control, cause in (
        (PlanChanges(), Control(), NoDraftsCause.RESTING),
        (PlanChanges(num_steps=0), Control(), NoDraftsCause.PLAN),
        (PlanChanges(), Control(Adaptive.STATIC), NoDraftsCause.PLAN),
    ):
        planner.replan(changes, control)
        assert planner.no_drafts(resting) == NoDrafts(cause)


@pytest.mark.parametrize("cause", NoDraftsCause)
def test_every_cause_has_a_sentence_of_one_line(cause: NoDraftsCause) -> None:
    assert NoDrafts(cause).sentence.startswith("no drafts: ")
    assert NoDrafts(cause, rarely=True).sentence.startswith("hardly any drafts: in most steps ")
    rarely = NoDrafts(cause, 1, 1.25, 1.04, rarely=True).sentence
    assert rarely == "hardly any drafts: a step with 1 node costs 1.2 times one without, and 1.0 tokens are expected"
