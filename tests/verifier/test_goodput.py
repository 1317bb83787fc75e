"""The `goodput` controller: bounds within which every step is chosen, what is shown of it, and what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.speculation import Draft, Grow
from specsplit.values import AS_SET, Adaptive, Arm, Control, NoDraftsCause, Plan, PlanChanges
from specsplit_verifier.policy.acceptance import IDLE
from specsplit_verifier.policy.account import Account
from specsplit_verifier.policy.adaptive.choice import controller_for
from specsplit_verifier.policy.adaptive.goodput import MAX_STEPS, GoodputController
from specsplit_verifier.policy.budget import Line, Spending
from specsplit_verifier.policy.chooser import StepChooser
from specsplit_verifier.policy.cost import StepCost
from specsplit_verifier.policy.planner import Planner
from specsplit_verifier.records.step import SessionResult, StepResult
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.no_drafter import NoDrafter
from tests.support.sessions import drafting_for, session_of
from tests.verifier.results import STEP

LAUNCHED = Plan(num_steps=3, num_draft_tokens=8, topk=3)


def step(plan: Plan, nodes: int, accepted: int, *, seconds: float = 0.02, drafter_ready: bool = True) -> StepResult:
    """A step of one session that verified a chain of so many nodes."""
    chain = range(nodes + 1)
    draft = Draft(chain, chain, [at - 1 for at in chain], chain, [-0.1 * at for at in chain])
    late = None if drafter_ready else NoDraftsCause.LATE
    part = SessionResult(1, plan, draft, range(accepted + 1), 7, True, None, None, undrafted=late)
    return replace(STEP, sessions=[part], forward_us=1e6 * seconds, host_us=0.0)


def test_the_plan_is_what_a_step_may_spend_at_most_whatever_the_batch() -> None:
    controller = GoodputController(24)
    bounds = Plan(num_steps=MAX_STEPS, num_draft_tokens=24, topk=3)
    assert [controller.plan(LAUNCHED, sessions) for sessions in (0, 1, 64)] == 3 * [bounds]
    assert GoodputController(4).plan(LAUNCHED, 1) == Plan(num_steps=3, num_draft_tokens=4, topk=3)


@pytest.mark.parametrize("off", [{"num_steps": 0}, {"num_draft_tokens": 1}])
def test_a_launched_plan_that_does_not_speculate_stays(off: dict[str, int]) -> None:
    launched = replace(LAUNCHED, **off)
    assert GoodputController(24).plan(launched, 1) == launched


def test_request_and_operator_bound_what_the_controller_may_spend(tmp_path: Path) -> None:
    settings = VerifierSettings(model=tmp_path, adaptive=Adaptive.GOODPUT, max_draft_tokens=24)
    planner = Planner(settings.plan, 100, partial(controller_for, settings))
    assert planner.default.num_draft_tokens == 24
    assert planner.plan_of(PlanChanges(num_draft_tokens=5)).num_draft_tokens == 5
    planner.replan(PlanChanges(num_steps=2), Control(max_draft_tokens=12))
    assert (planner.default.num_steps, planner.default.num_draft_tokens) == (2, 12), (
        "the bound holds for the steps of an operator too"
    )
    deep = planner.plan_of(PlanChanges(num_steps=9))
    assert (deep.num_steps, deep.num_draft_tokens) == (9, 12), "and for those of a request"
    planner.replan(PlanChanges(), Control(max_draft_tokens=12))
    assert planner.default.num_draft_tokens == 12
    assert planner.plan_of(PlanChanges(num_steps=0)).speculates is False
    planner.replan(PlanChanges(), Control(Adaptive.STATIC))
    assert planner.default == settings.plan


def test_a_bound_that_features_have_no_room_for_is_refused(tmp_path: Path) -> None:
    settings = VerifierSettings(model=tmp_path, step_token_budget=100, feature_retention=132)
    controller_for(settings, Control(Adaptive.GOODPUT, 32))
    with pytest.raises(InvalidRequest, match=r"max_draft_tokens: is 33, too many .* expected at most 32"):
        controller_for(settings, Control(Adaptive.GOODPUT, 33))


def test_a_bound_that_nobody_has_named_gives_way_to_the_room_there_is_for_features(tmp_path: Path) -> None:
    settings = VerifierSettings(model=tmp_path, feature_retention=530)
    assert settings.controller is Adaptive.GOODPUT and settings.max_draft_tokens == 32
    assert controller_for(settings, AS_SET).plan(settings.plan, 1).num_draft_tokens == 530 - 512
    named = VerifierSettings(model=tmp_path, feature_retention=530, max_draft_tokens=32)
    with pytest.raises(InvalidRequest, match=r"is 32, too many .* expected at most 18"):
        controller_for(named, AS_SET)


def test_a_step_shown_as_one_of_0_steps_counts_as_drafted_and_one_whose_plan_has_0_steps_does_not() -> None:
    (part,) = step(LAUNCHED, 0, 0).sessions
    resting = replace(LAUNCHED, num_steps=0)
    assert replace(part, shown=resting).speculates
    assert replace(part, shown=resting).shown_plan == resting
    assert not replace(part, plan=resting).speculates


def test_a_drafter_that_brings_nothing_is_told_to_rest_and_another_begins_anew() -> None:
    bounds, chooser = GoodputController(24).plan(LAUNCHED, 1), StepChooser()
    session = session_of(plan=bounds)

    def turned() -> list[Plan]:
        chooser.meet([session])
        return [plan for _, plan in chooser.resting_changes([session], lambda wishes: wishes.over(bounds))]

    def drafted_by(address: str) -> None:
        session.drafter = drafting_for(address=address)

    drafted_by("slow")
    assert isinstance(session.drafter, DraftSession) and not session.drafter.drafter_ready
    for _ in range(2 * IDLE):
        assert turned() == []
        assert chooser.spending([session], StepCost(), LAUNCHED).nodes == [0]
        chooser.observe(step(session.plan, 0, 0, drafter_ready=session.drafter.drafter_ready))
    session.drafter.mirror.grow(Grow(0, resting=True))  # until now it may have been reading the prompt
    for _ in range(IDLE):
        assert turned() == []
        assert chooser.spending([session], StepCost(), LAUNCHED).nodes == [0]
        chooser.observe(step(session.plan, 0, 0, drafter_ready=session.drafter.drafter_ready))
    (resting,) = turned()
    assert resting == replace(bounds, num_steps=0)
    session.plan = resting
    assert turned() == [], "it was told"
    session.drafter = NoDrafter(needed=True)
    assert turned() == [bounds], "it is gone, and another may bring more"
    drafted_by("other")
    assert turned() == [bounds]


def test_the_floor_is_half_of_what_a_node_has_to_bring_and_none_where_nothing_is_chosen() -> None:
    chooser, cost = StepChooser(), StepCost(0.010, 0.001)
    sessions = [session_of(plan=LAUNCHED), session_of(plan=LAUNCHED)]
    assert chooser.floor == 0.0
    chooser.spending(sessions, cost, LAUNCHED)
    assert chooser.floor == pytest.approx(2 * 0.001 / 0.012 / 2), "two roots in 12 ms, and 1 ms for a node"
    assert Planner(LAUNCHED, 100).floor == 0.0


def test_all_drafters_rest_when_they_are_to_and_sessions_without_one_keep_their_plan() -> None:
    bounds, chooser = GoodputController(24).plan(LAUNCHED, 1), StepChooser()
    drafted, bare = session_of(1, plan=bounds), session_of(2, plan=bounds)
    drafted.drafter = drafting_for(address="good")
    chooser.meet([drafted, bare])

    def changes(*, all_rest: bool) -> list[tuple[int, Plan]]:
        found = chooser.resting_changes([drafted, bare], lambda wishes: wishes.over(bounds), all_rest=all_rest)
        return [(session.id, plan) for session, plan in found]

    resting = replace(bounds, num_steps=0)
    assert changes(all_rest=False) == []
    assert changes(all_rest=True) == [(1, resting)]
    drafted.plan = resting
    assert changes(all_rest=True) == [], "it was told"
    assert changes(all_rest=False) == [(1, bounds)]


def test_drafters_work_for_texts_that_repeat_themselves_beside_others_that_rest() -> None:
    bounds, chooser = GoodputController(24).plan(LAUNCHED, 1), StepChooser()
    plain, repeating = session_of(1, plan=bounds), session_of(2, plan=bounds)
    for session, text in ((plain, range(1, 9)), (repeating, [1, 2, 3, 4, 1, 2, 3])):
        session.drafter, session.tokens = drafting_for(address="good"), [*text]
    chooser.meet([plain, repeating])
    assert [chooser.repeating(session) for session in (plain, repeating)] == [False, True]
    found = chooser.resting_changes([plain, repeating], lambda wishes: wishes.over(bounds), plain_rest=True)
    assert [(session.id, plan.num_steps) for session, plan in found] == [(1, 0)]


@pytest.mark.parametrize(("rest_trials", "grouped"), [(True, False), (True, True), (False, False)])
def test_a_planner_has_drafters_rest_that_double_a_step_if_it_is_to_try_and_is_no_rank(
    rest_trials: bool, grouped: bool, tmp_path: Path
) -> None:
    settings = VerifierSettings(model=tmp_path, rest_trials=rest_trials)
    planner = Planner(
        settings.plan, 100, partial(controller_for, settings), rest_trials=settings.rest_trials, grouped=grouped
    )
    session = session_of(1, plan=planner.default)
    session.drafter = drafting_for(address="hungry")
    rested, arms = 0, set[Arm | None]()
    for _ in range(60):
        planner.schedule([session], 0.0)
        for told, plan in planner.resting_changes([session]):
            told.plan = plan
        rests = not session.plan.speculates
        rested += rests
        arms.add(planner.arm)
        assert rests or planner.arm not in (Arm.REST, Arm.REST_TRIED), "what is counted is what drafters do"
        planner.observe(step(session.plan, 0, 0, seconds=0.02 if rests else 0.04))
    assert (rested > 30) is (rest_trials and not grouped)
    assert arms == ({Arm.WORK, Arm.REST_TRIED, Arm.REST} if rest_trials and not grouped else {None})


def test_sessions_that_draft_and_verify_alternately_are_not_told_to_rest_for_the_time_that_they_wait(
    tmp_path: Path,
) -> None:
    settings = VerifierSettings(model=tmp_path, rest_trials=True)
    planner = Planner(settings.plan, 100, partial(controller_for, settings), rest_trials=True)
    session = session_of(1, plan=replace(planner.default, draft_ahead=False))
    session.drafter = drafting_for(address="slow")
    for _ in range(60):
        planner.schedule([session], 0.0)
        assert planner.resting_changes([session]) == []
        planner.observe(step(session.plan, 4, 1, seconds=0.1))


def test_a_wait_that_a_step_beside_prompts_cut_short_says_nothing_of_what_waits_bring() -> None:
    bounds, chooser = GoodputController(24).plan(LAUNCHED, 1), StepChooser()
    session = session_of(plan=bounds)
    for number in range(100):
        drafter = session.drafter = drafting_for(address="quick")
        drafter.begin(0, float(number))
        chooser.meet([session])
        spending = chooser.spending([session], StepCost(base_s=0.02), LAUNCHED)
        assert chooser.pause([session], spending, float(number)) > 0.0
        chooser.observe(step(session.plan, 0, 0, seconds=0.005))


def test_a_request_that_wants_no_drafts_is_left_alone() -> None:
    bounds, wishes, chooser = GoodputController(24).plan(LAUNCHED, 1), PlanChanges(num_steps=0), StepChooser()
    request = DecodeRequest("r", (1,), plan=wishes)
    session = session_of(1, request, wishes.over(bounds))
    chooser.meet([session])
    assert list(chooser.resting_changes([session], lambda wishes: wishes.over(bounds))) == []


def test_what_is_shown_falls_and_rises_with_what_is_spent() -> None:
    bounds, chooser = GoodputController(24).plan(LAUNCHED, 1), StepChooser()
    assert chooser.account.shown(bounds) == bounds, "nothing was spent yet"
    for nodes in (6, 0, 6):
        for _ in range(200):
            chooser.observe(step(bounds, nodes, 0))
        shown = chooser.account.shown(bounds)
        assert (shown.num_steps, shown.num_draft_tokens) == (nodes, nodes + 1)
    fixed = replace(bounds, num_steps=2, num_draft_tokens=3)
    assert chooser.account.shown(fixed) == fixed, "never more than a session may have"


@given(st.lists(st.sampled_from([4, 5]), min_size=100, max_size=200))
def test_what_is_shown_does_not_flutter(spent: list[int]) -> None:
    bounds, chooser = GoodputController(24).plan(LAUNCHED, 1), StepChooser()
    shown: list[Plan] = []
    for nodes in spent:
        chooser.observe(step(bounds, nodes, 0))
        shown.append(chooser.account.shown(bounds))
    assert sum(one != two for one, two in pairwise(shown)) <= 1 + len(spent) // 25


def test_the_estimate_says_what_is_committed_per_second() -> None:
    bounds, chooser = GoodputController(24).plan(LAUNCHED, 1), StepChooser()
    assert chooser.account.estimate() is None
    for _ in range(100):
        chooser.observe(step(bounds, 4, 2))
    estimate = chooser.account.estimate()
    assert estimate is not None
    assert estimate.accept_length == pytest.approx(3.0)
    assert estimate.step_s == pytest.approx(0.02)


def test_a_step_of_prompts_alone_shows_nothing_of_the_launched_plan() -> None:
    account, line = Account(), Line(0.01, 0.001)
    account.weighed(Spending([2], 2.0, 0.012), Spending([1], 1.0, 0.011), line)
    account.stepped(step(LAUNCHED, 2, 1))
    before = account.estimate()
    for _ in range(8):
        if account.asks:
            account.weighed(Spending([], 0.0, 0.01), Spending([], 0.0, 0.01), line)
        account.stepped(replace(step(LAUNCHED, 2, 1), sessions=[]))
    assert account.estimate() == before
    account.stepped(step(LAUNCHED, 2, 1))
    after = account.estimate()
    assert before is not None and after is not None
    assert after.static_rate / after.rate == pytest.approx(before.static_rate / before.rate)
