"""What a step takes and whether it waits, under a plan that stays: the policy is that of goodput, and the plan bounds its nodes alone."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.ranks.lockstep import Agreed, Proposal
from specsplit.speculation import Draft, Grow
from specsplit.values import Adaptive, Control, Plan, PlanChanges
from specsplit_verifier.policy.adaptive.controller import Controller
from specsplit_verifier.policy.adaptive.goodput import GoodputController
from specsplit_verifier.policy.planner import Pause, Planner, Schedule
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session
from tests.support.sessions import drafting_for, session_of
from tests.verifier.test_goodput import step

AHEAD = Plan(num_steps=3, topk=2, num_draft_tokens=4, wait_budget_us=1_000_000)
SERIAL = Plan(num_steps=3, topk=2, num_draft_tokens=4, wait_budget_us=1_000_000, draft_ahead=False)
WIDE = Plan(num_steps=8, topk=4, num_draft_tokens=12, wait_budget_us=1_000_000)
STEP_S = 0.02


def controllers(control: Control) -> Controller:
    return GoodputController(4) if control.adaptive is Adaptive.GOODPUT else Controller()


def planning(*, grouped: bool = False) -> Planner:
    """A planner that knows steps to take 20 ms, whatever is in them."""
    planner = Planner(AHEAD, 100, controllers, grouped=grouped)
    for tokens in (1, 4, 16) * 20:
        planner.cost.observe(tokens, 0, STEP_S)
    return planner


def drafted(number: int, plan: Plan = AHEAD, *, read: int = 9) -> Session:
    """A session of 10 tokens whose drafter, which answers within 5 ms, has just been told of it."""
    session = session_of(number, plan=plan, tokens=10, read=read)
    session.drafter = drafting_for(number, root=9)
    session.drafter.begin(9, now=0.0)
    return session


def grown(session: Session, *, resting: bool = True) -> Session:
    """The session, once its drafter has grown a chain of five nodes that are hardly ever right."""
    assert isinstance(session.drafter, DraftSession)
    ids = tuple(range(1, 6))
    session.drafter.grow(Grow(0, ids, tuple(range(5)), (7,) * 5, (-3.0,) * 5, resting=resting), 0.0)
    session.drafter.apply_grows(session.tree_limits, prefilling=False)
    return session


def taken(planner: Planner, *running: Session) -> dict[int, int]:
    """Tokens that each session brings at most to the step that is made now."""
    batch = planner.schedule(running, 0.0)
    assert isinstance(batch, Schedule), "nobody waits"
    return {session.id: limits.num_draft_tokens for session, limits in batch.decoding}


def test_a_quick_drafter_is_waited_for_and_with_it_all_others() -> None:
    late, ready = drafted(1), grown(drafted(2))
    pause = planning().schedule([late, ready], 0.0)
    assert isinstance(pause, Pause) and pause.seconds is not None and 0.0 < pause.seconds < STEP_S
    assert isinstance(planning().schedule([late], 2.0), Schedule), "its wait budget is over"


def test_nobody_waits_beside_a_prompt_or_beside_ranks_that_step() -> None:
    assert taken(planning(), drafted(1), drafted(2, read=0)) == {1: 1, 2: 1}
    beside = planning(grouped=True)
    beside.agree(Agreed(0, [Proposal(rows=1, plan=AHEAD), Proposal(rows=8, plan=AHEAD)]))
    assert taken(beside, drafted(1)) == {1: 1}


def test_a_session_that_drafts_and_verifies_in_turn_is_left_out_until_its_drafts_are_there() -> None:
    serial, ahead = drafted(1, SERIAL), grown(drafted(2))
    assert taken(planning(), serial, ahead) == {2: 4}
    assert planning().schedule([serial], 0.0) == Pause(1.0), "the rest of its wait budget"
    assert planning().schedule([grown(serial, resting=False)], 0.25) == Pause(0.75), (
        "a tree that is not whole is no reason to step"
    )


def test_a_step_takes_all_nodes_within_a_plan_that_stays_and_of_goodput_those_that_pay() -> None:
    planner = planning()
    for tokens in (1, 4, 16) * 60:
        planner.cost.observe(tokens, 0, STEP_S * tokens)  # each token costs as much as a whole step did
    assert taken(planner, grown(drafted(1))) == {1: 4}
    planner.replan(PlanChanges(), Control(Adaptive.GOODPUT))
    assert taken(planner, grown(drafted(1))) == {1: 1}


TREES = st.lists(st.lists(st.tuples(st.integers(0, 30), st.floats(-3.0, 0.0)), max_size=20), min_size=1, max_size=5)


@given(TREES, st.integers(1, 20))
def test_a_step_brings_the_likeliest_nodes_that_there_is_memory_for_below_the_roots_of_all(
    trees: list[list[tuple[int, float]]], most: int
) -> None:
    sessions = [growing(number, tree) for number, tree in enumerate(trees)]
    everything = taken_of(Planner(WIDE, 100), sessions)
    some, crowded_out = taken_of(Planner(WIDE, 100, most_nodes=most), sessions)
    offered = [draft.log_survivals[1:] for draft in everything[0]]
    assert everything[1] == frozenset()
    assert sum(len(draft.tokens) - 1 for draft in some) == min(most, sum(map(len, offered)))
    for draft, whole in zip(some, offered, strict=True):
        assert draft.parents[0] == -1, "every root runs"
        assert all(0 <= parent < node for node, parent in enumerate(draft.parents[1:], start=1)), "below what runs"
        assert list(draft.log_survivals[1:]) == list(whole[: len(draft.tokens) - 1])
    left_out = [
        survival for draft, whole in zip(some, offered, strict=True) for survival in whole[len(draft.tokens) - 1 :]
    ]
    brought = [survival for draft in some for survival in draft.log_survivals[1:]]
    assert not left_out or min(brought) >= max(left_out) - 1e-9
    assert crowded_out == {
        n for n, (draft, whole) in enumerate(zip(some, offered, strict=True)) if len(draft.tokens) == 1 and whole
    }


def growing(number: int, tree: list[tuple[int, float]]) -> Session:
    """A session whose drafter has grown a tree: of every node the parent and the edge."""
    session = drafted(number, WIDE)
    assert isinstance(session.drafter, DraftSession)
    ids = tuple(range(1, len(tree) + 1))
    parents = tuple(parent % (at + 1) for at, (parent, _) in enumerate(tree))
    grow = Grow(0, ids, parents, ids, tuple(edge for _, edge in tree), resting=True)
    session.drafter.grow(grow, 0.0)
    session.drafter.apply_grows(session.tree_limits, prefilling=False)
    return session


def taken_of(planner: Planner, sessions: list[Session]) -> tuple[list[Draft], Collection[int]]:
    """What a step takes of every session, and who is crowded out."""
    step = planner.schedule(sessions, 0.0)
    assert isinstance(step, Schedule)
    drafts: list[Draft] = []
    for session, limits in step.decoding:
        assert isinstance(session.drafter, DraftSession)
        drafts.append(session.drafter.mirror.preview(*limits.of_tree))
    return drafts, step.crowded_out


def test_what_goodput_tells_of_its_plan_begins_anew_with_it() -> None:
    planner = planning()
    for _ in range(10):
        planner.observe(step(AHEAD, 3, 2))
    assert planner.estimate() is None, "there is nothing to weigh under a plan that stays"
    planner.replan(PlanChanges(), Control(Adaptive.GOODPUT))
    assert planner.estimate() is None and planner.shown(planner.default) == planner.default, (
        "it has weighed nothing yet"
    )
    planner.observe(step(planner.default, 1, 1))
    estimate = planner.estimate()
    assert estimate is not None and estimate.accept_length == pytest.approx(2.0)
