"""How drafters are scored, ranked and explored, and how sessions are spread over them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specsplit.clock import ManualClock
from specsplit.membership import HandOver, Heartbeat, Register
from specsplit.values import (
    DrafterInfo,
    DrafterKind,
    DrafterReport,
    Endpoint,
    Load,
    ModelInfo,
    SpeculationReport,
    Vocabulary,
)
from specsplit_coordinator.cluster.drafter_placement import EXPLORE_EVERY, NO_DRAFTER, DrafterPlacement
from specsplit_coordinator.cluster.drafter_scorer import (
    GUESS_STEPS,
    GUESSES,
    MOST_STEPS,
    REFRESH_EVERY_S,
    REMEMBERED_STEPS,
    DrafterScorer,
    DrafterStats,
    score,
)
from specsplit_coordinator.cluster.rebalancer import EVERY_S, NEVER_BACK_S, Rebalancer
from specsplit_coordinator.cluster.rosters import MARGIN, Rosters, reordered
from specsplit_coordinator.members.group import Group
from specsplit_coordinator.members.member_state import MemberState, endpoint_of
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.admission import Admission

HERE = Vocabulary(50, "aa")
STANDALONE, NGRAM = DrafterKind.STANDALONE, DrafterKind.NGRAM
STEP_S = 0.02
PLACES = 16

steps, accepted, seconds, shares = (
    st.floats(0, 1e4, allow_subnormal=False),
    st.floats(0, 16),
    st.floats(0, 1),
    st.floats(0, 1),
)
brought = st.builds(DrafterStats, steps, accepted, seconds)


class MemberStates:
    """Those of a cluster: who is there, and what verifiers say."""

    def __init__(self, *drafters: str, kind: DrafterKind = STANDALONE) -> None:
        self.clock = ManualClock()
        self.registry = Registry(HERE, self.clock, lost_after_s=1e9)
        self.scorer = DrafterScorer(self.registry, self.clock)
        self.admission = Admission(self.registry, 100, 1.0)
        self.rebalancer = Rebalancer(self.registry, self.scorer, self.admission.leases, self.clock)
        self.verifier = self.join_verifier("v")
        self.drafters = {name: self.join(name, kind) for name in drafters}

    def join(self, name: str, kind: DrafterKind = STANDALONE) -> MemberState:
        return self.registry.register(Register(name, f"{name}:1", DrafterInfo(kind, "", HERE, 512), PLACES))

    def join_verifier(self, name: str) -> MemberState:
        return self.registry.register(Register(name, f"{name}:1", ModelInfo("toy", HERE, 512), 64))

    def hear(self, *reports: DrafterReport, of: MemberState | None = None, step_ms: float = STEP_S * 1e3) -> None:
        """What a verifier reports, the only one unless another is named."""
        told = SpeculationReport("static", drafters=reports)
        self.registry.on_heartbeat(of or self.verifier, Heartbeat(Load(step_ms=step_ms), speculation=told))

    def score(self, name: str, *, sampled: bool = False) -> float:
        return self.scorer.score(self.verifier, self.drafters[name], sampled=sampled)

    async def place(self, name: str, count: int) -> None:
        """Sessions that are drafted for by one drafter."""
        for _ in range(count):
            (await self.admission.acquire()).take_drafter(self.drafters[name])

    def spread(self) -> dict[str, int]:
        return {name: member.running for name, member in self.drafters.items()}

    def look(self, *reports: DrafterReport) -> list[HandOver]:
        """The coordinator looks once; what it orders the verifier, which it has not been told yet."""
        self.clock.advance(EVERY_S)
        self.hear(*reports)
        self.rebalancer.rebalance()
        return list(self.verifier.hand_overs)

    def order(self, *reports: DrafterReport) -> list[HandOver]:
        """The coordinator looks once; what it orders the verifier, which is told."""
        ordered = self.look(*reports)
        self.verifier.hand_overs.clear()
        return ordered

    def settle(self) -> list[HandOver]:
        """Let the coordinator look again and again, until it leaves everything as it is; what it ordered."""
        ordered: list[HandOver] = []
        for _ in range(200):
            new = self.order(*(DrafterReport(name, member.running) for name, member in self.drafters.items()))
            if not new:
                return ordered
            ordered += new
        raise AssertionError("it never rests")


@given(brought, accepted, seconds, shares)
def test_who_brings_more_or_holds_up_less_or_is_less_busy_never_scores_lower(
    mine: DrafterStats, more: float, longer_s: float, busier: float
) -> None:
    base = score(mine, STEP_S, 0.5)
    assert score(replace(mine, accepted=mine.accepted + more), STEP_S, 0.5) >= base
    assert score(replace(mine, held_s=mine.held_s + longer_s), STEP_S, 0.5) <= base
    assert score(mine, STEP_S, 0.5 + busier) <= base


@given(brought, brought)
def test_what_is_shrunk_lies_between_what_was_seen_and_the_guess(mine: DrafterStats, guess: DrafterStats) -> None:
    shrunk = mine.shrunk(guess)
    for name in ("accepted", "held_s"):
        ends = sorted((getattr(mine, name), getattr(guess, name)))
        assert ends[0] - 1e-9 <= getattr(shrunk, name) <= ends[1] + 1e-9
    assert DrafterStats(0.0, 9.0).shrunk(guess).accepted == guess.accepted
    half = replace(mine, steps=GUESS_STEPS).shrunk(guess)
    assert half.accepted == pytest.approx((mine.accepted + guess.accepted) / 2)


@given(st.lists(st.builds(DrafterReport, st.just("d"), st.just(0), steps, accepted, seconds), max_size=5))
def test_the_mean_over_verifiers_goes_by_their_steps(reports: list[DrafterReport]) -> None:
    mean = DrafterStats.of(reports)
    assert mean.steps == pytest.approx(sum(each.steps for each in reports))
    assert mean.steps * mean.accepted == pytest.approx(sum(each.steps * each.accepted for each in reports))


def test_a_worked_example() -> None:
    members = MemberStates("a")
    members.hear(DrafterReport("a", 1, steps=150.0, accepted=2.0, held_s=0.004))
    kind = 0.25 * GUESSES[STANDALONE] + 0.75 * 2.0, 0.75 * 0.004
    whole = (kind[0] + 2.0) / 2, (kind[1] + 0.004) / 2  # of greedy text 50 steps count, as many as a guess weighs
    greedy = 0.25 * whole[0] + 0.75 * 2.0, 0.25 * whole[1] + 0.75 * 0.004
    pair = 0.25 * greedy[0] + 0.75 * 2.0, 0.25 * greedy[1] + 0.75 * 0.004
    members.drafters["a"].running = PLACES // 2
    assert members.score("a") == pytest.approx((1 + pair[0]) * STEP_S / (STEP_S + pair[1]) * (1 - 0.25 / 2))


def test_one_that_was_never_seen_is_expected_to_bring_what_its_kind_brings() -> None:
    members = MemberStates("seen", "new")
    members.hear(DrafterReport("seen", 1, steps=1e6, accepted=3.0))
    # Of 1e6 steps 1,000 count, so a guess weighs 50 / 1,050 = 1/21: that of the kind is (3 - 1.4) / 21 short of 3. For all that the drafter
    # does 50 count: 1/2 of that; for greedy text again 1/21 of that, and for the verifier.
    assert members.score("new") == pytest.approx(1 + 3 - 1.6 / 21)
    assert members.score("seen") == pytest.approx(1 + 3 - 1.6 / 21 / 2 / 21**2)
    members.drafters["seen"].running = 4
    assert members.score("new") > members.score("seen")


def test_what_another_verifier_says_counts_until_there_is_more_to_go_by() -> None:
    members = MemberStates("a", "b")
    reports = (DrafterReport("a", 1, steps=500.0, accepted=0.2), DrafterReport("b", 1, steps=500.0, accepted=2.5))
    members.hear(*reports, of=members.join_verifier("w"))
    assert members.score("b") > members.score("a")
    members.clock.advance(REFRESH_EVERY_S)
    members.hear(DrafterReport("a", 1, steps=5e3, accepted=2.5), DrafterReport("b", 1, steps=5e3, accepted=0.2))
    assert members.score("a") > members.score("b")


def test_one_that_answers_late_is_expected_to_bring_less_until_it_has_been_seen_often() -> None:
    def scores(steps: float) -> tuple[float, float]:
        members = MemberStates("near", "far")
        members.hear(
            DrafterReport("near", 1, steps, 2.0, round_trip_s=STEP_S / 2),
            DrafterReport("far", 1, steps, 2.0, round_trip_s=5 * STEP_S),
        )
        return members.score("near"), members.score("far")

    near, far = scores(2.0)
    assert far < 0.75 * near
    near, far = scores(1e5)
    # 2,000 steps of the kind, 1,000 of each: guesses weigh 1/41, 1/2, 1/21 and 1/21; of what is guessed of the far one a fifth counts.
    guess = 2 - 0.6 / 41 / 2 / 21
    assert near == pytest.approx(1 + (20 * 2 + guess) / 21)
    assert far == pytest.approx(1 + (20 * 2 + guess / 5) / 21)


def test_of_one_report_no_more_than_so_many_steps_count() -> None:
    members = MemberStates("d")
    for name, count, accepted in (("w", 1e9, 3.0), ("x", MOST_STEPS, 1.0)):
        members.hear(DrafterReport("d", 1, count, accepted), of=members.join_verifier(name))
    assert members.scorer.seen(members.drafters["d"], sampled=False) == 2 * MOST_STEPS
    assert members.score("d") == pytest.approx(1 + 2.0 - 0.6 / 41 / 2 / 41), "both verifiers count alike: 2 of 1 and 3"


@given(brought, brought)
def test_what_was_known_fills_up_what_is_seen_to_as_many_steps_as_are_remembered(
    mine: DrafterStats, before: DrafterStats
) -> None:
    both = mine.filled_up(before)
    assert both.steps == pytest.approx(max(mine.steps, min(REMEMBERED_STEPS, before.steps)))
    if mine.steps >= min(REMEMBERED_STEPS, before.steps) or not both.steps:
        assert both == mine
    for name in ("accepted", "held_s") if both.steps else ():
        ends = sorted((getattr(mine, name), getattr(before, name)))
        assert ends[0] - 1e-9 <= getattr(both, name) <= ends[1] + 1e-9


def test_however_many_heartbeats_come_what_they_say_is_summed_up_once_in_so_long() -> None:
    members = MemberStates("d")
    scores = list[float]()
    for i in range(9):
        members.hear(DrafterReport("d", 1, 1e3, accepted=float(i)))
        scores.append(members.score("d"))
        members.clock.advance(REFRESH_EVERY_S / 4)
    assert [scores.index(score) for score in scores] == [0, 0, 0, 0, 4, 4, 4, 4, 8]


def test_what_is_remembered_rests_on_no_more_steps_however_often_they_are_told() -> None:
    def told(heartbeats: int) -> float:
        members = MemberStates("d")
        for _ in range(heartbeats):
            members.hear(DrafterReport("d", 1, steps=10.0, accepted=4.0))
            members.score("d")
            members.clock.advance(REFRESH_EVERY_S)
        members.hear()  # from now on it is only remembered
        return members.score("d")

    guess = GUESSES[STANDALONE]
    whole = (10 * 4.0 + 50 * guess) / 60
    assert told(1) == told(30) == pytest.approx(1 + (10 * 4.0 + 50 * whole) / 60)


names = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@given(names, st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 10), max_size=8))
def test_a_new_order_has_everybody_once_and_no_neighbours_that_gain_by_changing(
    before: list[str], scores: dict[str, float]
) -> None:
    order = reordered(before, scores, MARGIN)
    assert sorted(order) == sorted(scores)
    for ahead, behind in pairwise(order):
        assert scores[behind] <= (1 + MARGIN) * scores[ahead]
    assert reordered(order, scores, MARGIN) == order, "it stays so"


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(1.0, 1.09), max_size=8))
def test_what_is_about_equal_does_not_change_places(scores: dict[str, float]) -> None:
    before = sorted(scores)
    assert reordered(before, scores, MARGIN) == before


def test_a_roster_follows_the_scores_and_not_every_little_change() -> None:
    members = MemberStates("a", "b")
    rosters = Rosters(members.registry, members.scorer)

    def order(a: float, b: float) -> list[str]:
        members.clock.advance(REFRESH_EVERY_S)
        members.hear(DrafterReport("a", 1, 1e5, a), DrafterReport("b", 1, 1e5, b))
        return [each.member_id for each in rosters.compute(members.verifier).drafters]

    assert order(2.0, 2.0) == ["a", "b"]
    assert order(2.0, 2.2) == ["a", "b"], "that is too little"
    assert order(1.0, 2.2) == ["b", "a"]
    assert order(2.2, 2.2) == ["b", "a"]


class CountingScorer(DrafterScorer):
    """Counts how often it is asked for a score."""

    asked = 0

    def score(self, verifier: MemberState, drafter: MemberState, more: int = 0, *, sampled: bool) -> float:
        self.asked += 1
        return super().score(verifier, drafter, more, sampled=sampled)


class Crowd:
    """Eight verifiers and forty drafters, and the rosters that the verifiers have."""

    def __init__(self) -> None:
        self.members = MemberStates(*(f"d{number}" for number in range(40)))
        self.verifiers = [self.members.verifier, *(self.members.join_verifier(f"v{number}") for number in range(7))]
        self.scorer = CountingScorer(self.members.registry, self.members.clock)
        self.rosters = Rosters(self.members.registry, self.scorer)
        self.told = Counter[str]()
        for verifier in self.verifiers:
            self.rosters.compute(verifier)
            self.rosters.subscribe(verifier, partial(self.told.update, [verifier.member_id]))

    def draw(self) -> None:
        """Draw all rosters."""
        for _ in self.rosters.update():
            pass

    def names(self, verifier: MemberState) -> list[str]:
        """The drafters that a verifier is told of."""
        return [each.member_id for each in self.rosters.latest(verifier).drafters]

    def beat(self, *reports: DrafterReport) -> int:
        """A second passes, in which every verifier reports twice; how many scores that took."""
        before = self.scorer.asked
        for verifier in self.verifiers * 2:
            self.members.clock.advance(REFRESH_EVERY_S / 16)
            self.members.hear(*reports, of=verifier)
        self.draw()
        return self.scorer.asked - before


def test_heartbeats_without_news_score_nobody_however_many_drafters_there_are() -> None:
    crowd = Crowd()
    assert crowd.scorer.asked == 40, "verifiers that have reported nothing score alike"
    crowd.beat()
    assert sum(crowd.beat() for _ in range(20)) == 0
    assert not crowd.told


def test_heartbeats_with_news_score_every_pair_once_a_second_at_most() -> None:
    crowd = Crowd()
    crowd.beat()
    for steps in range(1, 5):
        reports = DrafterReport("d7", 1, 200.0 * steps, 3.0), DrafterReport("d8", 1, 200.0 * steps, 0.0)
        assert crowd.beat(*reports) <= 8 * 40
    assert set(crowd.told) == {verifier.member_id for verifier in crowd.verifiers}
    assert all(crowd.rosters.compute(verifier).drafters[0].member_id == "d7" for verifier in crowd.verifiers)


def test_drafters_that_come_together_are_told_once_and_one_that_goes_too() -> None:
    crowd = Crowd()
    crowd.beat()
    before = crowd.scorer.asked
    new = [crowd.members.join(f"n{number}", NGRAM) for number in range(10)]
    crowd.draw()
    crowd.draw()
    assert crowd.scorer.asked - before == 50 and set(crowd.told.values()) == {1}
    crowd.members.registry.remove(new[0], "gone")
    crowd.draw()
    assert set(crowd.told.values()) == {2}
    drafters = crowd.rosters.compute(crowd.verifiers[3]).drafters
    assert [each.member_id for each in drafters[-9:]] == [f"n{number}" for number in range(1, 10)]


def test_every_verifier_is_told_once_that_a_drafter_has_other_weights() -> None:
    crowd = Crowd()
    crowd.beat()
    crowd.told.clear()
    for version, told in ((0, 0), (1, 0), (2, 1), (2, 1), (3, 2)):
        crowd.members.registry.on_heartbeat(crowd.members.drafters["d7"], Heartbeat(Load(), weights_version=version))
        crowd.draw()
        assert {crowd.told[verifier.member_id] for verifier in crowd.verifiers} == {told}
    versions = {each.member_id: each.weights_version for each in crowd.rosters.compute(crowd.verifiers[0]).drafters}
    assert versions.pop("d7") == 3 and {*versions.values()} == {0}


def test_a_drafter_that_may_no_longer_be_used_is_struck_out_of_every_roster_and_nobody_is_scored_for_it() -> None:
    crowd = Crowd()
    crowd.beat(DrafterReport("d7", 1, 200.0, 3.0))
    before, asked = {verifier: crowd.names(verifier) for verifier in crowd.verifiers}, crowd.scorer.asked
    crowd.told.clear()
    crowd.members.registry.remove(crowd.members.drafters["d7"], "gone")
    crowd.members.registry.drain(crowd.members.drafters["d9"])
    crowd.rosters.remove_gone()
    crowd.rosters.remove_gone()
    assert set(crowd.told.values()) == {1} and len(crowd.told) == 8
    for verifier, names in before.items():
        assert crowd.names(verifier) == [name for name in names if name not in {"d7", "d9"}]
    crowd.draw()
    assert crowd.scorer.asked == asked and set(crowd.told.values()) == {1}, "what is drawn then is what is left"


def test_a_drafter_that_went_is_struck_although_others_have_come_and_one_of_them_has_its_name() -> None:
    crowd = Crowd()
    registry = crowd.members.registry
    registry.remove(crowd.members.drafters["d7"], "gone")
    registry.register(Register("d7", "elsewhere:1", DrafterInfo(STANDALONE, "", HERE, 512), PLACES))
    late = crowd.members.join_verifier("late")
    assert Endpoint("d7", "elsewhere:1") in crowd.rosters.latest(late).drafters
    crowd.rosters.remove_gone()
    assert Endpoint("d7", "elsewhere:1") in crowd.rosters.latest(late).drafters
    assert all("d7" not in crowd.names(verifier) for verifier in crowd.verifiers)
    crowd.draw()
    assert all(Endpoint("d7", "elsewhere:1") in crowd.rosters.latest(each).drafters for each in crowd.verifiers)


@given(
    st.lists(st.tuples(st.sampled_from(["join", "go", "drain", "late", "strike", "draw", "step"]), st.integers(0, 5)))
)
def test_after_a_strike_nobody_is_told_of_a_drafter_that_may_not_be_used(changes: list[tuple[str, int]]) -> None:
    members = MemberStates()
    rosters, steps, usable = Rosters(members.registry, members.scorer), iter(()), set[Endpoint]()
    for change, number in changes:
        drafter = next((member for member in members.registry.drafters if member.member_id == f"d{number}"), None)
        match change:
            case "join" if drafter is None:
                members.join(f"d{number}")
            case "go" if drafter is not None:
                members.registry.remove(drafter, "gone")
            case "drain" if drafter is not None:
                members.registry.drain(drafter)
            case "late":
                rosters.latest(members.join_verifier(f"v{members.registry.changes}"))
            case "draw":
                steps = rosters.update()
            case "step":
                next(steps, None)
            case _:
                pass
        rosters.remove_gone()
        usable = {endpoint_of(member) for member in members.registry.usable_drafters}
        assert all(usable.issuperset(rosters.latest(verifier).drafters) for verifier in members.registry.verifiers)
    for _ in rosters.update():
        pass
    assert all(usable == {*rosters.latest(verifier).drafters} for verifier in members.registry.verifiers)


def test_a_verifier_that_is_to_hand_a_session_over_is_called_and_no_other_one() -> None:
    crowd = Crowd()
    crowd.verifiers[2].hand_overs.append(HandOver("d1", Endpoint("d2", "d2:1"), 1, False, False))
    crowd.draw()
    assert crowd.told == {crowd.verifiers[2].member_id: 1}


def placed(members: MemberStates, count: int, wish: str | None = None, *, sampled: bool = False) -> Counter[str]:
    placement, chosen = DrafterPlacement(members.scorer), Counter[str]()
    for _ in range(count):
        member = placement.choose(members.registry, members.verifier, wish, HERE, sampled=sampled)
        assert member is not None
        chosen[member.member_id] += 1
    return chosen


reports = st.builds(DrafterReport, st.just("d"), st.just(1), steps, accepted, seconds, seconds)


def scores(*told: DrafterReport) -> tuple[float, float]:
    """Of greedy and of sampled sessions."""
    members = MemberStates("d")
    members.hear(*told)
    return members.score("d"), members.score("d", sampled=True)


@given(reports, reports, accepted)
def test_who_brings_more_to_greedy_text_never_scores_lower_with_sampled_text_nor_the_other_way_about(
    greedy: DrafterReport, sampled: DrafterReport, more: float
) -> None:
    sampled = replace(sampled, sampled=True)
    before = scores(greedy, sampled)
    for after in (
        scores(replace(greedy, accepted=greedy.accepted + more), sampled),
        scores(greedy, replace(sampled, accepted=sampled.accepted + more)),
    ):
        assert all(now >= then - 1e-9 for now, then in zip(after, before, strict=True))


def test_of_what_it_was_never_seen_with_a_drafter_is_expected_to_bring_what_it_brings_in_all() -> None:
    greedy, sampled = scores(DrafterReport("d", 1, 1e6, 3.0))
    assert sampled == pytest.approx(1 + 3 - 1.6 / 21 / 2), "the kind's guess, and 50 steps of the drafter"
    assert greedy == pytest.approx(1 + 3 - 1.6 / 21 / 2 / 21**2)
    assert scores(DrafterReport("d", 1, 1e6, 3.0, sampled=True)) == (sampled, greedy)
    greedy, sampled = scores(DrafterReport("d", 1, 1e6, 3.0), DrafterReport("d", 1, 50.0, 0.0, sampled=True))
    kind = (1.4 + 21 * (1000 * 3 / 1050)) / 22
    whole = (kind + 2 * 1.5) / 3
    assert sampled == pytest.approx(1 + whole / 4), "greedy text does not speak for it, however much there was of that"


def test_one_that_answers_late_does_so_with_any_text() -> None:
    near, far = (DrafterReport("d", 1, 10.0, 2.0, round_trip_s=trips * STEP_S) for trips in (1, 5))
    assert scores(far)[1] < 0.75 * scores(near)[1]


def test_a_session_is_placed_for_its_own_kind_of_text() -> None:
    members = MemberStates("s")
    members.drafters["n"] = members.join("n", NGRAM)
    told = (DrafterReport("n", 1, 1e3, 3.0), DrafterReport("n", 1, 1e3, 0.1, sampled=True))
    members.hear(*told, DrafterReport("s", 1, 1e3, 1.5), DrafterReport("s", 1, 1e3, 1.0, sampled=True))
    assert placed(members, 20) == {"n": 20}
    assert placed(members, 20, sampled=True) == {"s": 20}
    members.hear(DrafterReport("n", 1, 1e3, 3.0), DrafterReport("s", 1, 1e3, 1.0, sampled=True))
    assert placed(members, EXPLORE_EVERY - 1, sampled=True) == {"s": EXPLORE_EVERY - 1}, "what it brought is remembered"


def test_a_drafter_is_explored_with_the_text_that_has_seen_little_of_it() -> None:
    members = MemberStates("good", "bad")
    told = DrafterReport("good", 1, 1e5, 2.5), DrafterReport("bad", 1, 1e5, 0.1)
    members.hear(*told, replace(told[0], sampled=True))
    placement, chosen = DrafterPlacement(members.scorer), Counter[tuple[str, bool]]()
    for _ in range(4 * EXPLORE_EVERY):
        for sampled in (False, True):
            member = placement.choose(members.registry, members.verifier, None, HERE, sampled=sampled)
            assert member is not None
            chosen[member.member_id, sampled] += 1
    assert chosen["bad", False] == 0 and chosen["bad", True] == 4


def test_a_roster_is_for_the_texts_that_its_verifier_has() -> None:
    def best(greedy: float, sampled: float) -> str:
        members = MemberStates("a", "b")
        members.hear(
            DrafterReport("a", 1, greedy, 3.0),
            DrafterReport("b", 1, greedy, 1.0),
            DrafterReport("a", 1, sampled, 0.1, sampled=True),
            DrafterReport("b", 1, sampled, 1.0, sampled=True),
        )
        return Rosters(members.registry, members.scorer).compute(members.verifier).drafters[0].member_id

    assert best(1e3, 0.0) == best(1e3, 1e2) == "a"
    assert best(0.0, 1e3) == best(1e2, 1e3) == "b"


async def test_running_sessions_go_where_their_own_kind_of_text_fares_better_and_none_goes_back() -> None:
    members = MemberStates("a", "b")
    await members.place("a", 4)
    await members.place("b", 4)

    def look(of_greedy: float, of_sampled: float) -> list[HandOver]:
        greedy = DrafterReport("a", 2, 1e5, 1.5), DrafterReport("b", 2, 1e5, of_greedy)
        sampled = DrafterReport("a", 2, 1e5, 1.5, sampled=True), DrafterReport("b", 2, 1e5, of_sampled, sampled=True)
        return members.order(*greedy, *sampled)

    to_a, to_b = Endpoint("a", "a:1"), Endpoint("b", "b:1")
    assert look(0.2, 1.5) == [HandOver("b", to_a, 1, sampled=False)]
    assert look(1.5, 4.0) == [HandOver("a", to_b, 1, sampled=True)], "a greedy one came, but no sampled one"
    assert look(4.0, 1.5) == [], "not at once"


def test_one_session_in_so_many_goes_to_a_drafter_that_was_seldom_seen_and_none_to_one_that_is_known_to_be_worse() -> (
    None
):
    members = MemberStates("good", "bad")
    members.hear(DrafterReport("good", 1, 1e5, 2.5))
    members.drafters["bad"].running = 2  # as much is expected of it as of the other, and it is busier
    assert placed(members, 4 * EXPLORE_EVERY) == {"good": 4 * (EXPLORE_EVERY - 1), "bad": 4}
    members.clock.advance(REFRESH_EVERY_S)
    members.hear(DrafterReport("good", 1, 1e5, 2.5), DrafterReport("bad", 1, GUESS_STEPS, 0.1))
    assert placed(members, 4 * EXPLORE_EVERY) == {"good": 4 * EXPLORE_EVERY}


def test_sessions_that_want_no_drafter_take_no_turn_at_exploring() -> None:
    members = MemberStates("good", "bad")
    members.hear(DrafterReport("good", 1, 1e5, 2.5))
    members.drafters["bad"].running = 2
    placement, chosen = DrafterPlacement(members.scorer), list[str]()
    for _ in range(EXPLORE_EVERY):
        member = placement.choose(members.registry, members.verifier, None, HERE, sampled=False)
        assert member is not None
        chosen.append(member.member_id)
        assert placement.choose(members.registry, members.verifier, NO_DRAFTER, HERE, sampled=False) is None
    assert chosen == ["good"] * (EXPLORE_EVERY - 1) + ["bad"], "one in so many of those that a drafter serves"


def test_exploring_keeps_to_the_wished_kind_and_to_those_with_room() -> None:
    members = MemberStates("good")
    members.drafters["ngram"] = members.join("ngram", NGRAM)
    members.hear(DrafterReport("good", 1, 1e5, 2.5))
    assert placed(members, EXPLORE_EVERY, "standalone") == {"good": EXPLORE_EVERY}
    members.drafters["ngram"].running = PLACES
    assert placed(members, EXPLORE_EVERY) == {"good": EXPLORE_EVERY}


async def test_a_drafter_that_joins_late_gets_running_sessions_little_by_little() -> None:
    members = MemberStates("first")
    await members.place("first", 8)
    members.drafters["late"] = members.join("late")
    assert members.settle() == [HandOver("first", Endpoint("late", "late:1"), 1)] * 2
    assert members.spread() == {"first": 6, "late": 2}, (
        "6 is no more than twice what the other would have with one more"
    )


async def test_in_one_round_a_verifier_hands_over_one_session_and_then_there_is_a_pause() -> None:
    members = MemberStates("first")
    await members.place("first", 8)
    members.drafters["late"] = members.join("late")
    members.hear(DrafterReport("first", 8))
    members.clock.advance(EVERY_S)
    for _ in range(5):
        members.rebalancer.rebalance()
    assert len(members.verifier.hand_overs) == 1


async def test_a_rank_whose_group_leaves_hands_no_session_over() -> None:
    members = MemberStates("first")
    await members.place("first", 8)
    members.drafters["late"] = members.join("late")
    members.verifier.group = Group(2)
    members.verifier.group.drain()
    assert members.settle() == []


async def test_a_verifier_that_does_not_listen_is_told_to_hand_over_one_session_and_none_is_counted_elsewhere() -> None:
    members = MemberStates("first")
    await members.place("first", 8)
    members.drafters["late"] = members.join("late")
    orders = [members.look(DrafterReport("first", 8)) for _ in range(20)]
    assert len(orders[-1]) == 1
    assert members.spread() == {"first": 7, "late": 1}, "as it will be once the verifier has been told"


class InVain(MemberStates):
    """Eight sessions of a drafter that another would serve better, and a verifier that hands none over."""

    async def start(self) -> None:
        await self.place("first", 8)
        self.drafters["late"] = self.join("late")

    def round(self, first: int = 8, late: int = 0, *, told: bool = True) -> int:
        """The coordinator looks once; how many orders the verifier is told of."""
        see = self.order if told else self.look
        return len(see(DrafterReport("first", first), DrafterReport("late", late)))


async def test_a_session_that_was_not_handed_over_is_counted_where_it_is() -> None:
    members = InVain("first")
    await members.start()
    spreads = list[tuple[int, dict[str, int]]]()
    for _ in range(4):
        spreads.append((members.round(), members.spread()))
    before, after = {"first": 8, "late": 0}, {"first": 7, "late": 1}
    assert spreads == [(1, after), (0, after), (0, before), (0, before)]


async def test_a_verifier_that_is_told_late_has_as_much_time_to_hand_a_session_over() -> None:
    members = InVain("first")
    await members.start()
    for _ in range(int(2 * NEVER_BACK_S / EVERY_S)):
        members.round(told=False)
    members.verifier.hand_overs.clear()
    members.round()
    assert members.spread() == {"first": 7, "late": 1}
    members.round(first=7, late=1)
    assert members.spread() == {"first": 7 - 1, "late": 1 + 1}, "it went, and so the next one may"


async def test_a_session_that_has_ended_since_it_was_to_be_handed_over_is_counted_nowhere() -> None:
    members = InVain()
    members.drafters = {"first": members.join("first"), "late": members.join("late")}
    leases = [await members.admission.acquire() for _ in range(8)]
    for lease in leases:
        lease.take_drafter(members.drafters["first"])
    assert members.round() == 1
    (moved,) = (lease for lease in leases if lease.serving is members.drafters["late"])
    moved.release()
    for _ in range(4):
        members.round()
    assert members.spread() == {"first": 7, "late": 0}


async def test_sessions_that_begin_and_end_later_do_not_undo_that_one_was_handed_over() -> None:
    members = InVain("first")
    await members.start()
    assert members.round() == 1
    assert members.round(first=7, late=1, told=False) == 1, "it went, and so the next one may"
    members.verifier.hand_overs.clear()
    assert members.round(first=6, late=2) == 0, "that is spread evenly enough"
    await members.place("first", 4)
    assert members.round(first=10, late=1) == 1, (
        "others began at the one and ended at the other: it has gone all the same"
    )


@given(st.lists(st.integers(0, PLACES), min_size=1, max_size=5))
async def test_sessions_are_spread_until_no_drafter_has_far_more_than_another_and_then_all_rest(
    counts: list[int],
) -> None:
    members = MemberStates(*(f"d{i}" for i in range(len(counts))))
    for name, count in zip(members.drafters, counts, strict=True):
        await members.place(name, min(count, 64 - sum(members.spread().values())))
    before = sum(members.spread().values())
    members.settle()
    spread = members.spread().values()
    assert sum(spread) == before
    assert max(spread) <= 2 * (min(spread) + 1)


class Kinds(MemberStates):
    """An n-gram and a standalone drafter, which do as their names say with sampled text; sessions go where they are told to."""

    def __init__(self, at_ngram: int, movable: int, *, obeys: bool = True) -> None:
        super().__init__()
        self.drafters = {"n": self.join("n", NGRAM), "s": self.join("s")}
        self.sessions = {"n": at_ngram, "s": 0}
        self.movable = {"n": movable, "s": 0}
        self.obeys = obeys
        self.accepted = {"n": 0.1, "s": 1.0}

    def round(self, passed_s: float = EVERY_S) -> list[HandOver]:
        """The coordinator looks once; what it orders is done."""
        self.clock.advance(passed_s - EVERY_S)
        ordered = self.order(
            *(
                DrafterReport(name, count, 1e3, self.accepted[name], sampled=True, movable=self.movable[name])
                for name, count in self.sessions.items()
            )
        )
        for order in ordered if self.obeys else []:
            for counts in (self.sessions, self.movable):
                counts[order.source] -= 1
                counts[order.target.member_id] += 1
        return ordered


TO_S = HandOver("n", Endpoint("s", "s:1"), 1, sampled=True, other_kind=True)
TO_N = HandOver("s", Endpoint("n", "n:1"), 1, sampled=True, other_kind=True)


def test_sessions_whose_callers_asked_for_no_kind_go_to_the_kind_that_brings_more_and_the_others_stay() -> None:
    members = Kinds(at_ngram=5, movable=3)
    assert [members.round() for _ in range(6)] == [[TO_S]] * 3 + [[]] * 3
    assert members.sessions == {"n": 2, "s": 3}


def test_a_session_goes_to_another_kind_only_if_it_gains_clearly_however_the_sessions_are_spread() -> None:
    members = Kinds(at_ngram=8, movable=8)
    members.accepted = {"n": 1.0, "s": 1.0}
    assert members.round() == [], "they are twice as many and more, but a kind is no equal of another"
    members.accepted = {"n": 1.0, "s": 1.6}
    assert members.round() == [TO_S]


def test_sessions_do_not_flap_between_kinds() -> None:
    members = Kinds(at_ngram=1, movable=1)
    assert members.round() == [TO_S]
    members.accepted = {"n": 3.0, "s": 1.0}
    assert members.round() == [], "not at once"
    assert members.round(NEVER_BACK_S) == [TO_N]
    assert members.round(NEVER_BACK_S) == members.round(NEVER_BACK_S) == []


def test_an_order_that_finds_no_session_is_let_pass_and_not_repeated_for_a_while() -> None:
    members = Kinds(at_ngram=3, movable=3, obeys=False)
    assert members.round() == [TO_S]
    for _ in range(int(NEVER_BACK_S / EVERY_S) - 1):
        assert members.round() == []
    assert members.round() == [TO_S]
    members.sessions["n"] = members.movable["n"] = 2
    assert members.round() == [TO_S], "one has gone"


@given(
    st.tuples(st.integers(0, PLACES), st.integers(0, PLACES)),
    st.tuples(accepted, accepted),
    st.tuples(st.booleans(), st.booleans()),
)
def test_sessions_of_different_kinds_come_to_rest_without_any_going_to_and_fro(
    counts: tuple[int, int], brings: tuple[float, float], movable: tuple[bool, bool]
) -> None:
    members = Kinds(0, 0)
    names = list(members.drafters)
    members.sessions = dict(zip(names, counts, strict=True))
    members.movable = {name: counts[i] * movable[i] for i, name in enumerate(names)}
    members.accepted = dict(zip(names, brings, strict=True))
    ordered = [order.source for _ in range(2 * PLACES) for order in members.round(NEVER_BACK_S)]
    assert len(set(ordered)) <= 1 and len(ordered) <= max(counts)


def test_a_verifier_of_an_older_build_is_not_told_to_hand_over_to_another_kind() -> None:
    members = Kinds(at_ngram=4, movable=0)  # it does not say which sessions may go
    assert members.round() == []


async def test_a_drafter_that_is_clearly_worse_loses_its_sessions_and_none_goes_back() -> None:
    members = MemberStates("good", "bad")
    await members.place("good", 2)
    await members.place("bad", 2)

    def look(good: float, bad: float) -> list[HandOver]:
        told, spread = {"good": good, "bad": bad}, members.spread()
        return members.order(*(DrafterReport(name, spread[name], 1e5, told[name]) for name in told))

    assert look(2.0, 1.9) == [], "that is too little"
    assert look(2.0, 0.5) == [HandOver("bad", Endpoint("good", "good:1"), 1)]
    assert look(0.5, 2.0) == [], "not at once"
    members.clock.advance(NEVER_BACK_S)
    assert look(0.5, 2.0) == [HandOver("good", Endpoint("bad", "bad:1"), 1)]


async def test_a_drafter_that_nobody_uses_is_remembered_as_it_was_and_sessions_do_not_come_back_to_it() -> None:
    members = MemberStates("good", "bad")
    await members.place("good", 2)
    await members.place("bad", 1)
    seen, moved = {"good": 1e3, "bad": 1e3}, list[HandOver]()
    for _ in range(40):
        told, spread = {"good": 2.0, "bad": 0.4}, members.spread()
        moved += members.order(*(DrafterReport(name, spread[name], seen[name], told[name]) for name in told))
        members.clock.advance(NEVER_BACK_S)
        seen = {name: count if members.drafters[name].running else count / 2 for name, count in seen.items()}
    assert moved == [HandOver("bad", Endpoint("good", "good:1"), 1)], "it went, and stayed"
    assert members.scorer.seen(members.drafters["bad"], sampled=False) < 1e-6
    assert members.score("bad") < (1 + 1.4) / (1 + 2.0) * members.score("good"), (
        "worse than a drafter of which nothing is known"
    )
    members.hear(DrafterReport("good", 3, 1e3, 2.0))
    assert members.score("bad") < 0.9 * members.score("good"), "nor is it forgotten once it is not reported at all"


@given(
    st.floats(0, 1e9),
    st.lists(st.builds(DrafterReport, st.sampled_from("ab"), st.just(1), *[st.floats(0)] * 4), max_size=4),
)
@example(20.0, [DrafterReport("a", 1, 1e3, 1.0, held_s=1e306)])
def test_no_number_that_a_verifier_reports_is_too_large_for_the_rebalancer(
    step_ms: float, reports: list[DrafterReport]
) -> None:
    members = MemberStates("a", "b")
    members.hear(*reports, step_ms=step_ms)
    members.clock.advance(EVERY_S)
    members.rebalancer.rebalance()


async def test_a_session_that_was_handed_over_is_given_back_where_it_is() -> None:
    members = MemberStates("a", "b")
    lease = await members.admission.acquire()
    lease.take_drafter(members.drafters["a"])
    members.admission.leases.hand_over(members.verifier, members.drafters["a"], members.drafters["b"])
    assert members.spread() == {"a": 0, "b": 1}
    assert lease.drafter is members.drafters["a"], "it is the one that it began with"
    lease.release()
    lease.release()
    assert members.spread() == {"a": 0, "b": 0}
