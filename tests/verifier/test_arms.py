"""Drafters work or rest: which of the two is tried, and which stays, in worlds whose steps take what is said of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.speculation import Draft
from specsplit.values import Arm, NoDraftsCause, Plan
from specsplit_verifier.policy.arms import FIRST, SETTLING, Arms, Record
from specsplit_verifier.policy.cost import StepCost
from specsplit_verifier.policy.evidence import Stretch, TokenCount
from specsplit_verifier.records.step import ChunkInput, Reroot, SessionResult
from tests.verifier.results import STEP

PLAN = Plan(num_steps=3, num_draft_tokens=8, topk=3)
RESTING = replace(PLAN, num_steps=0)
CHAIN = Draft(range(6), range(6), range(-1, 5), range(6), [-0.1 * at for at in range(6)])


@dataclass(frozen=True)
class World:
    """What steps take, and how many nodes they accept, by the number of the step."""

    step_s: float = 0.05
    stretch: float = 1.0
    """Times as long a step takes beside drafters that work."""
    accepted: Callable[[int], int] = lambda _: 0
    behind: int = 0
    """Steps for which drafters are late that were told to work again."""
    says: bool = True
    """Whether drafters that were told to rest say that they do."""
    alone: Callable[[int], bool] = lambda _: False
    """Whether the session rests by itself, by the number of the step, where drafters may work."""
    noise: Callable[[int], float] = lambda _: 1.0
    """Times as long as that a step takes for other reasons, by its number."""


@dataclass(frozen=True)
class Step:
    """One step of a world."""

    seconds: float
    tokens: int
    working: bool
    """Whether drafters may work."""


def steps(world: World, arms: Arms) -> Iterator[Step]:
    """One session, step by step, each told to the arms."""
    cost, late = StepCost(world.step_s), world.behind
    number = 0
    while True:
        arms.meet(["drafter"])
        allowed = not arms.resting
        working = allowed and not world.alone(number)
        late = max(0, late - 1) if working else world.behind
        accepted = world.accepted(number) if working and not late else 0
        seconds = world.step_s * (world.stretch if working else 1.0) * world.noise(number)
        cause = None if working and not late else NoDraftsCause.LATE if working else NoDraftsCause.RESTING
        part = SessionResult(
            *(1, PLAN if working else RESTING, CHAIN, range(accepted + 1), 7, True, None, None),
            reroot=Reroot(rested=not working and world.says),
            undrafted=cause,
        )
        result = replace(STEP, sessions=[part], forward_us=1e6 * seconds, host_us=0.0, waited_us=0.0, tokens=1)
        cost.observe(1, 100, seconds)
        arms.observe(result, cost)
        yield Step(seconds, accepted + 1, allowed)
        number += 1


def run(world: World, count: int) -> list[Step]:
    """So many steps from the beginning."""
    return list(islice(steps(world, Arms()), count))


def share_working(found: list[Step]) -> float:
    """The share of steps in which drafters work."""
    return sum(step.working for step in found) / len(found)


def test_a_useless_drafter_that_doubles_a_step_worked_by_hand() -> None:
    found = run(World(stretch=2.0), 60)
    assert [step.working for step in found[: FIRST + 20]] == [True] * FIRST + [False] * 20
    assert share_working(found[FIRST:]) < 0.1


def test_a_drafter_that_costs_nothing_is_left_at_work() -> None:
    assert share_working(run(World(stretch=1.0), 400)) > 0.9


@pytest.mark.parametrize("behind", [0, 6])
def test_a_drafter_that_becomes_good_works_again(behind: int) -> None:
    world = World(stretch=1.6, accepted=lambda number: 4 if number >= 100 else 0, behind=behind)
    found = run(world, 3000)
    assert share_working(found[20:100]) < 0.2
    assert share_working(found[-1000:]) > 0.95


def test_a_drafter_that_becomes_useless_rests_within_a_few_steps() -> None:
    world = World(stretch=1.6, accepted=lambda number: 0 if number >= 300 else 3)
    found = run(world, 400)
    assert share_working(found[200:300]) > 0.9
    assert not any(step.working for step in found[316:326])


def test_texts_of_which_some_bring_nothing_do_not_have_a_drafter_rest_that_is_good_for_others() -> None:
    # 30 steps that accept 6 nodes each, and then 20 that accept none: 4.6 tokens a step.
    found = run(World(stretch=1.4, accepted=lambda number: 6 if number % 50 < 30 else 0), 3000)
    assert share_working(found[100:]) > 0.95


def test_a_trial_that_another_batch_breaks_off_says_nothing_of_what_the_next_one_costs() -> None:
    arms = Arms()
    going_on = steps(World(stretch=1.4, behind=1), arms)
    while arms.arm is not Arm.WORK_TRIED:
        next(going_on)
    next(going_on)
    arms.meet(["drafter"], repeating=1)
    before_the_next = 0
    while arms.arm is not Arm.WORK_TRIED:
        next(going_on)
        before_the_next += 1
    assert before_the_next < 10, "it need not wait until all is saved up"


def test_a_drafter_that_brings_many_tokens_is_not_tried_at_once() -> None:
    assert share_working(run(World(stretch=1.4, accepted=lambda _: 2), 14)) == 1.0, "within the first second"
    assert share_working(run(World(stretch=1.4, accepted=lambda number: number % 2), 14)) < 1.0


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.01, 0.08),
    st.floats(1.0, 2.0),
    st.sampled_from([(0,), (1,), (0, 0, 1), (0, 3)]),
    st.sampled_from([0, 5]),
)
def test_what_a_drafter_costs_is_bounded(step_s: float, stretch: float, pattern: tuple[int, ...], behind: int) -> None:
    world = World(step_s, stretch, lambda number: pattern[number % len(pattern)], behind)
    found = run(world, 1200)
    seconds, tokens = sum(step.seconds for step in found), sum(step.tokens for step in found)
    extra_s = step_s * (stretch - 1)
    if 1 + sum(pattern) / len(pattern) > 0.95 * stretch:
        assert tokens * step_s > 0.9 * seconds, "near the edge it hardly matters which arm is in force"
    else:
        assert seconds - tokens * step_s < 40 * extra_s + 0.15 + 0.01 * seconds


@settings(deadline=None, max_examples=40)
@given(st.floats(0.005, 0.1), st.floats(1.0, 1.8), st.integers(2, 5))
def test_a_good_drafter_works_nearly_always(step_s: float, stretch: float, accepted: int) -> None:
    found = run(World(step_s, stretch, lambda _: accepted), 2000)
    assert share_working(found[200:]) > 0.95


def test_steps_that_tell_nothing_of_drafters_do_not_count() -> None:
    arms, world = Arms(), World(stretch=2.0)
    arms.meet(["drafter"])
    part = SessionResult(1, PLAN, CHAIN, range(1), 7, True, None, None)
    plain = replace(STEP, sessions=[part], forward_us=1e5, host_us=0.0, waited_us=0.0)
    chunk = object.__new__(ChunkInput)
    for _ in range(100):
        for other in (
            replace(plain, cold=True),
            replace(plain, chunks=[chunk]),
            replace(plain, sessions=[replace(part, attached=False)]),
        ):
            arms.observe(other, StepCost(world.step_s))
    assert not arms.resting, "no trial either"


def test_a_rest_that_a_session_takes_by_itself_is_part_of_drafters_that_work() -> None:
    seldom = World(stretch=1.6, alone=lambda number: number % 100 > 0)
    assert share_working(run(seldom, 600)) > 0.9, "0.6 % of the time is no reason to have it told to rest"
    often = replace(seldom, alone=lambda number: number % 4 > 0)
    assert share_working(run(often, 600)[50:]) < 0.2, "15 % are"
    bursts = replace(often, accepted=lambda number: 7 if number % 4 == 0 else 0)
    assert share_working(run(bursts, 600)) > 0.9, "and there they bring more than they take"


def test_batches_of_another_size_and_other_drafters_are_judged_by_themselves() -> None:
    arms = Arms()
    list(islice(steps(World(stretch=2.0), arms), 20))
    assert arms.resting
    for addresses in (["another"], ["drafter"] * 2, ["drafter", "another"]):
        arms.meet(addresses)
        assert not arms.resting
    arms.meet(["drafter"])
    assert arms.resting, "what was learnt is kept"


def test_batches_in_which_texts_repeat_themselves_are_judged_by_themselves() -> None:
    arms = Arms()
    list(islice(steps(World(stretch=2.0), arms), 20))
    assert arms.resting
    arms.meet(["drafter"], repeating=1)
    assert not arms.resting and arms.plain_resting, "drafters of the others rest as they would without it"
    arms.meet(["drafter"])
    assert arms.resting and not arms.plain_resting


def test_the_edge_worked_by_hand() -> None:
    record = Record()
    assert record.edge == 0.0 and not record.better(record.stretch), "nothing is known yet"
    for _ in range(1000):
        record.tokens.add(2.0)
    assert record.tokens.mean == pytest.approx(2.0, rel=0.01)
    record.stretch.add(0.5, 0.01)
    assert record.edge == pytest.approx(0.693 - 0.5, abs=0.01) and not record.better(record.stretch)
    for stretch in (0.9, 1.1, 0.9, 1.1):
        record.stretch.add(stretch, 0.01)
    assert record.better(record.stretch), "five trials have 0.9 in the mean"
    record.change()
    assert record.resting and not record.better(record.stretch)
    for _ in range(9):
        record.stretch.add(0.4, 0.01)
    assert record.better(record.stretch), "and now little more than 0.4"


def test_the_error_of_the_mean_of_trials_is_what_they_differ_by() -> None:
    quiet, loud = Stretch(), Stretch()
    assert quiet.error == float("inf")
    for number in range(40):
        quiet.add(0.2, 0.04)
        loud.add(0.2 + (0.5 if number % 2 else -0.5), 1e-6)
    assert quiet.mean == pytest.approx(0.2) and quiet.error < 0.03, (
        "steps said that trials are less alike than they are"
    )
    assert loud.mean == pytest.approx(0.2, abs=0.05), "and here that they are more alike"
    assert 0.08 < loud.error < 0.15


def test_a_trial_that_is_far_from_all_before_it_begins_the_mean_anew() -> None:
    stretch = Stretch()
    for _ in range(20):
        stretch.add(0.1, 1e-4)
    stretch.add(0.7, 1e-4)
    assert stretch.mean == pytest.approx(0.7)
    stretch.add(0.69, 1e-4)
    assert stretch.mean == pytest.approx(0.695, abs=0.001)


def test_tokens_are_forgotten_once_so_many_steps_without_a_node_are_unlikely() -> None:
    often, seldom = TokenCount(), TokenCount()
    for number in range(300):
        often.add(3.0)
        seldom.add(3.0 if number % 10 == 0 else 1.0)
    for _ in range(10):
        often.add(1.0)
        seldom.add(1.0)
    assert often.mean == pytest.approx(1.0)
    assert seldom.mean > 1.1, "ten in a row are nothing unusual there"
    for _ in range(100):
        often.add(3.0)
    for _ in range(20):
        often.add(1.0)
    assert often.mean > 2.0, "ten in a row were there before, and this is twice as many"
    often.add(1.0)
    assert often.mean == pytest.approx(1.0)


def test_a_step_of_many_sessions_is_as_sure_as_many_steps_of_one() -> None:
    one, many = TokenCount(), TokenCount()
    one.add(1.0)
    many.add(1.0, 9)
    assert one.error == pytest.approx(1 / 2) and many.error == pytest.approx(1 / 10)


def test_drafters_that_do_not_say_that_they_rest_are_given_time_for_it() -> None:
    found = run(World(stretch=2.0, says=False), 60)
    assert [step.working for step in found[:FIRST]] == [True] * FIRST
    assert not any(step.working for step in found[FIRST : FIRST + SETTLING + 2])


@pytest.mark.parametrize("seed", [7, 8, 9])
@pytest.mark.parametrize(("stretch", "accepted", "least"), [(1.25, 0, 0.98), (1.15, 1, 1.05)])
def test_the_better_arm_is_found_where_steps_differ_more_than_the_arms(
    seed: int, stretch: float, accepted: int, least: float
) -> None:
    # Steps take 0.7 or 1.6 times what they should, for 40 or so in a row, whatever drafters do.
    chance = random.Random(seed)
    loud = [1.0]
    while len(loud) < 12_000:
        loud.append(chance.choice((0.7, 1.6)) if chance.random() < 0.05 else loud[-1])
    world = World(0.008, stretch, lambda number: accepted * (number % 3 == 0), noise=loud.__getitem__)
    found = run(world, 12_000)
    rate = sum(step.tokens for step in found) / sum(step.seconds for step in found)
    alone = len(loud) / (0.008 * sum(loud))
    assert rate > least * alone
