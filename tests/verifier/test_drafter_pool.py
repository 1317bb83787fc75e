"""The pool by itself: what it remembers of drafters, whom sessions are handed to, and what a drafter that was told to rest may miss."""

from __future__ import annotations

import logging

import pytest

from specsplit.draft_events import Close, Open, Refuse
from specsplit.errors import Incompatible
from specsplit.features import FeatureFormat, FeatureLayout, FeatureNeed, Features
from specsplit.membership import HandOver
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Commit, Grow
from specsplit.values import Endpoint, Plan, Sampling, SpeculationStatistics, Vocabulary
from specsplit_verifier.drafters import memory as drafter_memory
from specsplit_verifier.drafters.pool import REFUSED_S, DrafterPool
from specsplit_verifier.records.events import FromDrafter
from specsplit_verifier.records.feed import FeatureSource, FeedLimits, Recipe
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import KEPT_BACK
from specsplit_verifier.sessions.drafter_record import DrafterRecord, DrafterSums, Recently
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits
from tests.support.sessions import session_of

LAYOUT = FeatureLayout(1, FeatureFormat.FP8_E4M3)
NEED = FeatureNeed(layers=(1,), hidden_size=1)
RESTING = Plan(num_steps=0)


def recipe_of(need: FeatureNeed) -> Recipe:
    if need != NEED:
        raise Incompatible(f"this target has no {need}")
    return Recipe((1,), "", LAYOUT)


def pool_with_features() -> DrafterPool:
    return DrafterPool(Vocabulary(100), 50, FeatureSource(recipe_of, FeedLimits(4, 8, 1000)))


def session_at(
    pool: DrafterPool, drafter: Endpoint, number: int = 1, temperature: float = 0.0, *, any_drafter: bool = False
) -> Session:
    request = DecodeRequest("r", (1,), Sampling(temperature, seed=1), any_drafter=any_drafter)
    session = session_of(number, request, most=500)
    session.drafter = NoDrafter(needed=True)
    pool.attach(session, drafter, 0.0)
    assert session.drafter.attached and pool.outgoing()
    return session


@pytest.mark.parametrize(("code", "for_now"), [(8, True), (14, True), (9, False)])
def test_a_drafter_that_had_no_place_or_was_leaving_is_asked_again_later(code: int, *, for_now: bool) -> None:
    pool, only = DrafterPool(Vocabulary(100), 50), Endpoint("d", "d:1")
    session = session_at(pool, only)
    running = {session.id: session}
    pool.roster([only], (), 0.0)
    refusal = FromDrafter(only.address, [(session.id, Refuse(code, "64 sessions open, its limit"))])
    pool.received(refusal, running, 10.0)
    assert [type(event) for _, _, event in pool.outgoing()] == [Close]
    pool.retry(running.values(), 11.0)
    pool.retry(running.values(), 10.0 + REFUSED_S - 0.1)
    assert pool.outgoing() == [], "a session does not knock at a full drafter every second"
    pool.retry(running.values(), 12.0 + REFUSED_S)
    assert bool(pool.outgoing()) is for_now
    assert session.drafter.attached is for_now


def test_what_had_come_before_a_session_was_opened_again_is_not_of_the_new_opening() -> None:
    """Its next drafter is lost while a step is in flight; what the first had said before waits behind that until the step is over."""
    pool, first, second = DrafterPool(Vocabulary(100), 50), Endpoint("d", "d:1"), Endpoint("e", "e:1")
    session = session_at(pool, first)
    running = {session.id: session}
    pool.roster([first], (), 0.0)
    old = FromDrafter(first.address, [(session.id, Grow(2, (9,), (0,), (3,), (-1.0,)))], openings=1)
    pool.hand_over(HandOver(first.address, second, 1), [session], 1.0)
    pool.lost(second.address, [session], 1.0)
    told = [(address, type(event)) for address, _, event in pool.outgoing()]
    assert told == [("d:1", Close), ("e:1", Open), ("e:1", Close), ("d:1", Open)]
    pool.received(old, running, 1.0)
    new = FromDrafter(first.address, [(session.id, Grow(0, (1,), (0,), (4,), (-1.0,)))], openings=3)
    pool.received(new, running, 1.0)
    pool.apply_grows([session])
    assert pool.outgoing() == []
    drafter = session.drafter.at(first.address)
    assert drafter is not None and drafter.mirror.listed()[0] == [0, 1]
    assert pool.counters.late_nodes == 1


def features(first: int, count: int) -> Features:
    return Features(first, count, bytes(count), bytes(4 * count))


def test_a_drafter_that_was_told_to_rest_is_not_given_up_for_reading_nothing_and_gets_what_it_missed_afterwards() -> (
    None
):
    pool = pool_with_features()
    session = session_at(pool, Endpoint("head", "head:1", NEED))
    pool.computed(session, features(0, 1), 0.0)
    pool.replan(session, RESTING, 0.0)
    assert [type(event) for _, _, event in pool.outgoing()] == [Features, Plan]
    for position in range(1, 40):
        pool.computed(session, features(position, 1), 1.0)
    drafter = session.drafter.at("head:1")
    assert drafter is not None and drafter.feed is not None, "it has read nothing of 40 tokens, of which 8 are kept"
    pool.replan(session, Plan(), 2.0)
    assert drafter.recompute == range(4, 4), "it has yet to read what it was sent"
    sent = drafter.read(4, 2.0, prefilling=False)
    while not drafter.feed.complete:
        if drafter.recompute:
            sent += pool_sent(pool, session, features(drafter.recompute.start, len(drafter.recompute)))
        sent += drafter.read(drafter.feed.sent, 2.0, prefilling=False)
    assert [each.first for each in sent] == [*range(4, 40, 4)], "all of it, in order"
    drafter.read(40, 2.0, prefilling=False)
    assert drafter.feed.live
    for position in range(40, 52):
        pool.computed(session, features(position, 1), 3.0)
    assert session.drafter is drafter, "it was sent 4, and 8 are kept"
    pool.computed(session, features(52, 1), 3.0)
    assert not session.drafter.attached, "one that drafts has to keep up"


def test_a_drafter_that_rests_is_sent_its_commits_together_and_before_anything_else() -> None:
    pool, made = DrafterPool(Vocabulary(100), 50), 0
    session = session_at(pool, Endpoint("d", "d:1"))
    drafter = session.drafter.at("d:1")
    assert drafter is not None

    def committed() -> list[object]:
        nonlocal made
        made += 1
        draft = drafter.take(0, made - 1, TreeLimits(8, 3, 0))
        pool.commit([(session, drafter.commit(draft, Accepted((0,), 7), float(made)))], 0)
        return [event.number if isinstance(event, Commit) else type(event) for _, _, event in pool.outgoing()]

    assert [committed(), committed()] == [[1], [2]], "it was not told to rest"
    pool.replan(session, RESTING, 3.0)
    assert committed() == [Plan] and not drafter.mirror.resting, "it has not said that it rests"
    drafter.grow(Grow(2, resting=True), 3.5)
    pool.apply_grows([session])
    assert drafter.mirror.resting, "it has answered all that it was sent"
    assert [committed() for _ in range(KEPT_BACK - 2)] == [[]] * (KEPT_BACK - 2)
    assert drafter.mirror.resting
    assert committed() == list(range(3, KEPT_BACK + 3)), "so many at once, in order"
    assert not drafter.mirror.resting, "its answer is to come"
    assert [committed() for _ in range(2)] == [[], []]
    pool.replan(session, Plan(), 60.0)
    told = [event.number if isinstance(event, Commit) else type(event) for _, _, event in pool.outgoing()]
    assert told == [made - 1, made, Plan]
    assert not drafter.drafter_ready, "its answer is to come"
    drafter.grow(Grow(KEPT_BACK + 2), 60.1)
    pool.apply_grows([session])
    assert not drafter.drafter_ready, "that is the answer to what was sent before"
    drafter.grow(Grow(made, (1,), (0,), (3,), (-1.0,)), 60.2)
    pool.apply_grows([session])
    assert drafter.drafter_ready and drafter.nodes == 1
    pool.replan(session, Plan(num_draft_tokens=1), 61.0)
    assert committed() == [Plan], "nor does this plan speculate"
    drafter.grow(Grow(made - 1, resting=True), 61.5)
    pool.apply_grows([session])
    assert drafter.mirror.resting
    pool.close(session)
    assert [type(event) for _, _, event in pool.outgoing()] == [Commit, Close], "it may look in all of the text later"


def test_features_wait_with_the_commits_of_a_drafter_that_rests() -> None:
    pool = pool_with_features()
    session = session_at(pool, Endpoint("head", "head:1", NEED))
    drafter = session.drafter.at("head:1")
    assert drafter is not None
    pool.computed(session, features(0, 1), 0.0)
    pool.replan(session, RESTING, 0.0)
    drafter.read(1, 0.1, prefilling=False)
    drafter.grow(Grow(0, resting=True), 0.1)
    pool.apply_grows([session])
    assert pool.outgoing()
    for position in (1, 2):
        draft = drafter.take(0, position - 1, TreeLimits(8, 3, 0))
        pool.commit([(session, drafter.commit(draft, Accepted((0,), 7), float(position)))], 0)
        pool.computed(session, features(position, 1), float(position))
        assert pool.outgoing() == []
    pool.replan(session, Plan(), 3.0)
    assert [type(event) for _, _, event in pool.outgoing()] == [Commit, Features, Commit, Features, Plan]


def pool_sent(pool: DrafterPool, session: Session, made: Features) -> list[Features]:
    pool.outgoing()
    pool.computed(session, made, 2.0)
    return [event for _, _, event in pool.outgoing() if isinstance(event, Features)]


def test_sessions_stay_where_they_are_if_the_other_drafter_needs_what_the_target_has_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = pool_with_features()
    session = session_at(pool, Endpoint("head", "head:1", NEED))
    drafter, other = session.drafter, FeatureNeed(layers=(7,), hidden_size=1)
    with caplog.at_level(logging.WARNING):
        order = HandOver("head:1", Endpoint("other", "other:1", other), 1)
        pool.hand_over(order, [session], 1.0)
        assert pool.outgoing() == []
    assert session.drafter is drafter and pool.counters.hand_overs == 0
    assert "sessions are not handed over to drafter other:1, which does not fit" in caplog.text


def test_a_pool_remembers_so_many_drafters_and_every_one_that_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_memory, "REMEMBERED", 3)
    pool = pool_with_features()
    sessions = [session_at(pool, Endpoint(f"d{i}", f"d:{i}"), i) for i in range(4)]
    assert len(pool.records) == 4, "all of them draft"
    for session in sessions[1:]:
        pool.close(session)
    for i in range(4, 12):
        pool.close(session_at(pool, Endpoint(f"d{i}", f"d:{i}"), i))
        assert len(pool.records) <= 4
    assert set(pool.records) >= {("d:0", False), ("d:11", False)}


def test_the_drafter_that_was_not_used_for_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_memory, "REMEMBERED", 2)
    pool = pool_with_features()
    for number, name in enumerate("abac"):
        pool.close(session_at(pool, Endpoint(name, f"{name}:1"), number))
    assert list(pool.records) == [("a:1", False), ("c:1", False)]


def test_greedy_and_sampled_sessions_have_records_of_their_own() -> None:
    pool, drafter = pool_with_features(), Endpoint("d", "d:0")
    sessions = [session_at(pool, drafter, number, temperature) for number, temperature in enumerate((0.0, 0.7, 1.0))]
    assert {key: record.sessions for key, record in pool.records.items()} == {("d:0", False): 1, ("d:0", True): 2}
    pool.close(sessions[1])
    assert pool.records["d:0", True].sessions == 1


def test_a_record_says_how_many_sessions_may_go_to_another_kind() -> None:
    pool, drafter = pool_with_features(), Endpoint("d", "d:0")
    sessions = [session_at(pool, drafter, number, any_drafter=number > 1) for number in (1, 2, 3)]
    record = pool.records["d:0", False]
    assert (record.sessions, record.movable) == (3, 2)
    pool.close(sessions[1])
    pool.close(sessions[0])
    assert (record.sessions, record.movable) == (1, 1)


def test_to_another_kind_go_only_sessions_whose_callers_asked_for_none() -> None:
    pool, drafter, other = pool_with_features(), Endpoint("d", "d:0"), Endpoint("e", "e:0")
    bound, free = (session_at(pool, drafter, number, any_drafter=number == 2) for number in (1, 2))
    for _ in range(2):
        pool.hand_over(HandOver("d:0", other, 2, other_kind=True), [bound, free], 0.0)
        assert bound.drafter.at("d:0") and free.drafter.at("e:0")
    assert pool.counters.hand_overs == 1
    pool.hand_over(HandOver("d:0", other, 2), [bound, free], 0.0)
    assert bound.drafter.at("e:0"), "to another of its kind it may go"


@pytest.mark.parametrize(("other_kind", "order"), [(True, [2, 1, 3, 0]), (False, [3, 0, 2, 1])])
def test_the_shortest_go_first_and_to_another_kind_those_that_drafters_have_brought_least(
    other_kind: bool, order: list[int]
) -> None:
    pool, drafter = pool_with_features(), Endpoint("d", "d:0")
    sessions = [session_at(pool, drafter, number, any_drafter=True) for number in range(4)]
    told = [(10, 30, 5), (10, 2, 90), (100, 20, 60), (50, 100, 3)]  # steps, accepted in them, tokens
    for session, (steps, accepted, tokens) in zip(sessions, told, strict=True):
        session.counters.totals, session.tokens = SpeculationStatistics(steps, accepted=accepted), [1] * tokens
    gone: list[int] = []
    while left := [session for session in sessions if session.drafter.at("d:0")]:
        pool.hand_over(HandOver("d:0", Endpoint("e", "e:0"), 1, other_kind=other_kind), sessions, 0.0)
        gone += [session.id for session in left if not session.drafter.at("d:0")]
    assert gone == order


def test_a_session_that_was_handed_over_and_is_preempted_comes_back_to_where_it_was() -> None:
    pool, other = pool_with_features(), Endpoint("e", "e:0")
    session = session_at(pool, Endpoint("d", "d:0"))
    pool.hand_over(HandOver("d:0", other, 1), [session], 0.0)
    pool.suspend(session)
    pool.resume(session, 1.0)
    assert session.drafter.at("e:0")


def test_only_sessions_of_the_kind_of_text_that_is_asked_for_are_handed_over() -> None:
    pool, drafter, other = pool_with_features(), Endpoint("d", "d:0"), Endpoint("e", "e:0")
    greedy, sampled = (session_at(pool, drafter, number, temperature) for number, temperature in ((1, 0.0), (2, 1.0)))
    pool.hand_over(HandOver("d:0", other, 2, sampled=True), [greedy, sampled], 0.0)
    assert greedy.drafter.at("d:0") and sampled.drafter.at("e:0")
    pool.hand_over(HandOver("d:0", other, 2, sampled=True), [greedy, sampled], 0.0)
    assert greedy.drafter.at("d:0"), "it is let pass where there is none"
    assert pool.counters.hand_overs == 1


def test_a_record_that_was_begun_anew_between_two_looks_takes_nothing_away() -> None:
    recently, key = Recently(), ("d:0", False)
    recently.look({key: DrafterRecord(sessions=1, steps=5000, accepted=50)}, 10.0)
    again = recently.look({key: DrafterRecord(sessions=1, steps=1, accepted=1)}, 25.0)[key]
    assert (again.steps, again.accepted) == (2501, 26)


def test_what_a_drafter_brought_lately_is_forgotten_with_its_record() -> None:
    recently = Recently()
    first = DrafterRecord(sessions=1, steps=100, accepted=50)
    key = "d:0", False
    assert recently.look({key: first}, 10.0)[key].steps == 100
    assert recently.look({}, 11.0) == {}
    again = recently.look({key: DrafterRecord(sessions=1, steps=3, accepted=3)}, 12.0)
    assert again == {key: DrafterSums(steps=3, accepted=3)}, "a new record begins at 0"


def left_to_the_pool(pool: DrafterPool, number: int) -> Session:
    """A session that begins to run, for which nobody has chosen a drafter."""
    session = session_of(number, DecodeRequest("r", (1,), any_drafter=True, from_roster=True), most=500)
    session.drafter = NoDrafter(needed=True)
    pool.resume(session, 0.0)
    return session


def test_sessions_for_which_nobody_chose_a_drafter_are_spread_over_the_roster() -> None:
    pool, both = DrafterPool(Vocabulary(100), 50), [Endpoint("d", "d:1"), Endpoint("e", "e:1")]
    pool.roster(both, (), 0.0)
    sessions = [left_to_the_pool(pool, number) for number in range(4)]
    assert sorted(session.drafter.address for session in sessions) == ["d:1", "d:1", "e:1", "e:1"]
    assert pool.counters.failovers == 0, "none of them has lost one"
    first = sessions[0]
    had = first.drafter.address
    pool.suspend(first)
    pool.resume(first, 1.0)
    assert first.drafter.address == had, "it comes back to the one that knows its text"
    pool.lost(had, sessions, 2.0)
    assert {session.drafter.address for session in sessions} == {"d:1", "e:1"} - {had}
    assert pool.counters.failovers == 2


def test_a_session_for_which_nobody_chose_a_drafter_gets_the_first_that_comes() -> None:
    pool, only = DrafterPool(Vocabulary(100), 50), Endpoint("d", "d:1")
    session = left_to_the_pool(pool, 1)
    assert not session.drafter.attached
    pool.roster([only], [session], 1.0)
    assert session.drafter.address == only.address and pool.counters.failovers == 0
