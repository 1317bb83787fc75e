"""Turns of a rank group: what ranks tell each other, and what follows from it on all of them alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.clock import ManualClock
from specsplit.errors import RankLost
from specsplit.membership import GroupRank
from specsplit.ranks.demand import EAGER, MOST_FORMS, NUMBERS, Demand, of_all
from specsplit.ranks.lockstep import NOTHING, REST_S, Agreed, Lockstep, Proposal
from specsplit.ranks.mesh import LocalMesh
from specsplit.records import TurnCosts
from specsplit.values import Plan
from specsplit_verifier.policy.planner import Planner
from tests.support.meshes import mesh_of

COUNT = st.integers(0, 2**31)
plans = st.builds(Plan, st.integers(0, 64), st.integers(1, 64), st.integers(1, 256), st.integers(0, 9), st.booleans())
demands = st.builds(Demand, COUNT, COUNT, st.integers(0, (1 << MOST_FORMS) - 1))
proposals = st.builds(Proposal, COUNT, COUNT, COUNT, COUNT, plans, demands)
few_plans = st.sampled_from([Plan(num_steps=steps) for steps in range(3)])
voters = st.builds(Proposal, unfinished=st.integers(0, 3), plan=few_plans)


@given(proposals)
def test_what_a_rank_tells_is_what_the_others_read(proposal: Proposal) -> None:
    assert Proposal.of(proposal.numbers) == proposal
    assert len(proposal.numbers) == len(NOTHING.numbers), "all ranks tell equally many numbers"


@given(proposals, st.lists(COUNT, max_size=5))
def test_a_drafters_rank_tells_the_rows_of_each_step_too(proposal: Proposal, steps: list[int]) -> None:
    told = replace(proposal, steps=tuple(steps))
    assert Proposal.of(told.numbers) == told
    assert [Agreed(0, [told] * 2).rows_of(step) for step in range(len(steps))] == [[rows] * 2 for rows in steps]


@given(st.lists(demands, min_size=1, max_size=5), st.data())
def test_what_all_ranks_need_does_not_depend_on_their_order_or_on_who_is_asked_first(
    told: list[Demand], data: st.DataObject
) -> None:
    first, *others = data.draw(st.permutations(told))
    cut = data.draw(st.integers(0, len(others)))
    assert of_all(told) == of_all([first, *others]) == of_all([first, *others[:cut]]).merged_with(of_all(others[cut:]))
    assert of_all(told) == of_all([*told, Demand()]) == of_all([*told, *told]), (
        "idle ranks and repetition change nothing"
    )
    assert {Agreed(rank, [Proposal(demand=each) for each in told]).demand for rank in range(len(told))} == {
        of_all(told)
    }


@given(st.lists(demands, min_size=1, max_size=5))
def test_what_all_ranks_need_holds_what_each_of_them_needs_and_is_eager_if_one_is(told: list[Demand]) -> None:
    together = of_all(told)
    for each in told:
        assert each.tokens <= together.tokens and each.rows <= together.rows
        assert together.eager or each.forms >> together.form & 1
    assert of_all([*told, EAGER]).eager
    assert together.tokens in {each.tokens for each in told} and together.rows in {each.rows for each in told}


def test_ranks_agree_on_the_cheapest_way_to_attend_that_will_do_for_all_of_them() -> None:
    tree, chunk, long_tree = Demand(12, 2, 0b110), Demand(40, 1, 0b101), Demand(3, 3, 0b100)
    assert (chunk.form, tree.form, long_tree.form) == (0, 1, 2)
    assert of_all([tree, chunk, Demand()]) == Demand(40, 2, 0b100)
    assert of_all([Demand(1, 1, 0b001), Demand(1, 1, 0b010)]).eager
    assert tree.numbers == (12, 2, 0b110) and len(tree.numbers) == NUMBERS


@given(st.lists(voters, min_size=2, max_size=4))
def test_all_ranks_agree_on_the_plan_of_most_sessions_and_idle_ones_change_nothing(told: list[Proposal]) -> None:
    (plan,) = {Agreed(rank, told).plan for rank in range(len(told))}
    busy = [each for each in told if each.unfinished]
    assert plan == (Agreed(0, busy).plan if busy else None)
    behind = {each.plan: sum(other.unfinished for other in busy if other.plan == each.plan) for each in busy}
    if plan is not None:
        assert behind[plan] == max(behind.values())
        assert next(each.plan for each in busy if behind[each.plan] == behind[plan]) == plan, "ties go to the lowest"


def test_an_idle_rank_does_not_break_a_tie() -> None:
    one, other = Plan(num_steps=1), Plan(num_steps=2)
    told = [Proposal(plan=other), Proposal(unfinished=1, plan=one), Proposal(unfinished=1, plan=other)]
    assert Agreed(0, told).plan == one


def test_a_turn_in_which_nobody_has_rows_rests_as_long_as_the_least_patient_would() -> None:
    waiting = [Proposal(unfinished=1, rest_us=700), Proposal(), Proposal(unfinished=2, rest_us=900)]
    agreed = Agreed(1, waiting)
    assert (agreed.runs, agreed.unfinished, agreed.rest_s) == (False, True, pytest.approx(0.0007))
    assert Agreed(0, [Proposal(rest_us=10**9)] * 2).rest_s == REST_S
    busy = Agreed(1, [Proposal(rows=5), Proposal(), Proposal(rows=3)])
    assert (busy.runs, busy.idle, busy.rows, busy.others_rows) == (True, True, [5, 0, 3], 8)
    assert TurnCosts(1, busy.rows).imbalance == pytest.approx(5 / (8 / 3))


def test_ranks_that_turn_together_see_the_same_and_are_of_the_group_that_rank_0_named() -> None:
    meshes = mesh_of(3)

    def rank(number: int) -> Lockstep:
        lockstep = Lockstep(meshes[number], ManualClock(), drawn=0xABC + number)
        assert not lockstep.turn(Proposal(unfinished=number), rows=0, kv_tokens=0)
        assert lockstep.turn(Proposal(unfinished=number), rows=number, kv_tokens=9)
        return lockstep

    with ThreadPoolExecutor(3) as threads:
        ranks = list(threads.map(rank, range(3)))
    assert [lockstep.group for lockstep in ranks] == [GroupRank("abc", number, 3) for number in range(3)]
    for number, lockstep in enumerate(ranks):
        assert lockstep.agreed is not None and lockstep.agreed.rank == number
        assert [each.unfinished for each in lockstep.agreed.proposals] == [0, 1, 2]
        assert lockstep.agreed.rows == [0, 1, 2]


def test_a_turn_that_a_dead_rank_is_missing_from_raises_on_the_others() -> None:
    first, second = mesh_of(2)
    second.die()
    with pytest.raises(RankLost):
        Lockstep(first, ManualClock())


def test_one_that_is_alone_has_no_group() -> None:
    lockstep = Lockstep(LocalMesh(), ManualClock())
    assert lockstep.alone and lockstep.group is None and lockstep.agreed is None


def test_a_step_is_expected_to_take_as_long_as_all_ranks_rows_did_in_the_turn_before() -> None:
    planner = Planner(Plan(), 64, grouped=True)
    for tokens in (10, 50, 100, 200) * 20:
        planner.cost.observe(tokens, 0, 0.01 + tokens * 1e-4)
    alone = planner.expected_s(20, 0)
    assert not planner.agree(Agreed(0, [Proposal(rows=20, unfinished=1), Proposal(rows=80, unfinished=3)]))
    assert planner.expected_s(20, 0) == pytest.approx(alone + 80e-4, rel=0.05)


def test_a_rank_of_a_group_takes_a_plan_when_it_is_agreed_and_not_before() -> None:
    planner, other = Planner(Plan(), 64, grouped=True), Plan(num_steps=2)
    assert not planner.adapt(40) and planner.default == Plan()
    mine, theirs = Proposal(unfinished=1), Proposal(unfinished=2, plan=other)
    assert planner.agree(Agreed(0, [mine, theirs])) and planner.default == other
    assert not planner.agree(Agreed(0, [NOTHING, NOTHING])) and planner.default == other
    assert not planner.agree(Agreed(0, [NOTHING, Proposal(unfinished=1, plan=other)]))
