"""The queue before the verifiers: bounded, in order, and nothing is lost on the way out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager

import pytest

from specsplit.clock import ManualClock
from specsplit.errors import Exhausted, InvalidRequest, Unavailable
from specsplit.membership import GroupRank, Register
from specsplit.values import ModelInfo, Vocabulary
from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.fair_queue import QueueOwner


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry(clock: ManualClock) -> Registry:
    return Registry(Vocabulary(50), clock, 2.0)


def join(registry: Registry, name: str, max_sessions: int = 1, group: GroupRank | None = None) -> MemberState:
    return registry.register(Register(name, "a:1", ModelInfo("toy", Vocabulary(50), 512), max_sessions, group=group))


def join_group(registry: Registry, size: int) -> list[MemberState]:
    return [join(registry, f"v{rank}", 4, GroupRank("g", rank, size)) for rank in range(size)]


async def enter(admission: Admission) -> Lease:
    """As a request does."""
    with admission.permit():
        pass
    return await admission.acquire()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def asking(lease: Coroutine[object, object, Lease]) -> asyncio.Task[Lease]:
    """A request that asks for a place, once it has one or waits."""
    task = asyncio.create_task(lease)
    await settle()
    return task


async def test_requests_wait_in_order_and_are_refused_with_a_hint_when_the_queue_is_full(registry: Registry) -> None:
    join(registry, "v1")
    admission = Admission(registry, max_queue=2, retry_after_s=1.5)
    first = await enter(admission)
    waiting = [asyncio.create_task(enter(admission)) for _ in range(2)]
    await settle()
    assert (admission.running, admission.queued) == (1, 2)
    with pytest.raises(Exhausted, match=r"1 requests run and 2 wait") as caught:
        await enter(admission)
    assert caught.value.retry_after_s == 1.5
    first.release()
    second = await waiting[0]
    assert not waiting[1].done()
    second.release()
    (await waiting[1]).release()
    assert (admission.running, admission.queued) == (0, 0)


async def test_a_queue_of_none_refuses_at_once(registry: Registry) -> None:
    join(registry, "v1")
    admission = Admission(registry, max_queue=0, retry_after_s=1)
    await enter(admission)
    with pytest.raises(Exhausted):
        await enter(admission)


async def test_a_newcomer_does_not_overtake_and_a_new_verifier_serves_who_waits(registry: Registry) -> None:
    join(registry, "v1")
    admission = Admission(registry, max_queue=4, retry_after_s=1)
    await enter(admission)
    waiting = await asking(enter(admission))
    join(registry, "v2", max_sessions=2)
    assert (await waiting).verifier.member_id == "v2"
    assert (await enter(admission)).verifier.member_id == "v2"


async def test_who_waits_is_told_when_the_last_verifier_goes(registry: Registry) -> None:
    member = join(registry, "v1")
    admission = Admission(registry, max_queue=4, retry_after_s=1)
    await enter(admission)
    waiting = await asking(enter(admission))
    registry.remove(member, "it left")
    with pytest.raises(Unavailable):
        await waiting
    assert admission.queued == 0


async def test_who_waits_for_a_verifier_that_is_away_takes_another_that_comes_by_its_name(registry: Registry) -> None:
    member = join(registry, "v1")
    admission = Admission(registry, max_queue=4, retry_after_s=1)
    await enter(admission)
    waiting = await asking(enter(admission))
    registry.on_stream_ended(member, "its stream ended")
    other = join(registry, "v1", max_sessions=2)
    assert other is not member and member.lost_because == "another has its name now"
    assert (await waiting).verifier is other


async def test_who_gives_up_waiting_leaves_the_queue(registry: Registry) -> None:
    member = join(registry, "v1")
    admission = Admission(registry, max_queue=1, retry_after_s=1)
    lease = await enter(admission)
    waiting = await asking(enter(admission))
    waiting.cancel()
    await asyncio.wait({waiting})
    assert admission.queued == 0
    lease.release()
    assert (admission.running, member.running) == (0, 0)


async def test_a_place_given_in_the_very_moment_of_giving_up_goes_back(registry: Registry) -> None:
    member = join(registry, "v1")
    admission = Admission(registry, max_queue=1, retry_after_s=1)
    lease = await enter(admission)
    waiting = await asking(enter(admission))
    lease.release()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert (admission.running, member.running) == (0, 0)


async def test_releasing_twice_gives_one_place_back(registry: Registry) -> None:
    member = join(registry, "v1", max_sessions=2)
    admission = Admission(registry, max_queue=1, retry_after_s=1)
    one, two = await enter(admission), await enter(admission)
    one.release()
    one.release()
    assert (admission.running, member.running) == (1, 1)
    two.release()


async def test_idle_returns_once_nothing_runs_or_waits(registry: Registry) -> None:
    join(registry, "v1")
    admission = Admission(registry, max_queue=1, retry_after_s=1)
    await admission.idle()
    first = await enter(admission)
    waiting: asyncio.Task[Lease] = asyncio.create_task(enter(admission))
    idle = asyncio.create_task(admission.idle())
    await settle()
    first.release()
    second = await waiting
    await settle()
    assert not idle.done()
    second.release()
    await asyncio.wait_for(idle, 1)


async def test_requests_whose_prompts_are_being_read_count_as_waiting(registry: Registry) -> None:
    join(registry, "v1", max_sessions=2)
    admission = Admission(registry, max_queue=1, retry_after_s=1)
    with admission.permit(), admission.permit(), admission.permit():
        with pytest.raises(Exhausted, match="0 requests run and 3 wait"), admission.permit():
            pass
        idle = asyncio.create_task(admission.idle())
        await settle()
        assert not idle.done()
    await asyncio.wait_for(idle, 1)
    with admission.permit():
        pass


async def test_no_prompt_is_read_while_no_verifier_takes_sessions(registry: Registry) -> None:
    with pytest.raises(Unavailable, match="no verifier has joined"), Admission(registry, 4, 1).permit():
        pass


async def test_a_request_that_a_verifier_let_down_goes_ahead_of_the_others(registry: Registry) -> None:
    join(registry, "v1")
    admission = Admission(registry, max_queue=4, retry_after_s=1)
    first = await enter(admission)
    waiting = await asking(enter(admission))
    again = await asking(admission.acquire(again=True))
    first.release()
    await settle()
    assert again.done() and not waiting.done()
    (await again).release()
    (await waiting).release()


async def test_a_trial_ends_with_the_first_event_or_with_the_lease(registry: Registry) -> None:
    member = join(registry, "v1", max_sessions=3)
    admission = Admission(registry, max_queue=4, retry_after_s=1)
    member.breaker.failed()
    trial = await enter(admission)  # there is no other, so it is tried at once
    trial.release()
    trial = await enter(admission)
    trial.succeeded()
    assert member.breaker.admits
    trial.release()
    assert (admission.running, member.running) == (0, 0)


async def test_who_lost_a_verifier_waits_for_one_and_only_so_long(registry: Registry, clock: ManualClock) -> None:
    member = join(registry, "v1")
    admission = Admission(registry, max_queue=4, retry_after_s=1, failover_s=3.0)
    (await enter(admission)).release()
    registry.remove(member, "it was killed")
    first, second = (asyncio.create_task(admission.acquire(again=True)) for _ in range(2))
    await settle()
    clock.advance(2.9)
    admission.serve_waiting()
    join(registry, "v2")
    assert (await first).verifier.member_id == "v2"
    registry.remove(registry.verifiers[0], "it was killed too")
    clock.advance(2.9)
    admission.serve_waiting()
    await settle()
    assert not second.done(), "the time with a verifier, busy as it was, does not count"
    clock.advance(0.2)
    admission.serve_waiting()
    with pytest.raises(Unavailable, match="no verifier took it over in 3 s: no verifier has joined"):
        await second
    assert admission.queued == 0


async def test_who_was_let_down_waits_for_a_verifier_that_can_hold_it_and_only_so_long(
    registry: Registry, clock: ManualClock
) -> None:
    """A smaller one would refuse it as no request that it could ever serve, and end an answer of which some has been told."""
    small, wanted = join(registry, "small", max_sessions=2), PlacementRequest(range(500), 100)
    admission = Admission(registry, max_queue=4, retry_after_s=1, failover_s=3.0)
    again = await asking(admission.acquire(wanted, again=True))
    assert not again.done(), "its context is of 512 tokens"
    large = registry.register(Register("large", "a:1", ModelInfo("toy", Vocabulary(50), 600), 1))
    assert (await again).verifier is large
    registry.remove(large, "it was killed")
    again = await asking(admission.acquire(wanted, again=True))
    clock.advance(3.1)
    admission.serve_waiting()
    with pytest.raises(Unavailable, match="no verifier took it over in 3 s: no verifier that is there can hold this"):
        await again
    assert (await admission.acquire(wanted)).verifier is small, "which says to a new request why not"


async def test_a_new_request_that_only_a_verifier_could_hold_that_is_away_waits_for_it(registry: Registry) -> None:
    join(registry, "small")
    large = registry.register(Register("large", "a:1", ModelInfo("toy", Vocabulary(50), 600), 1))
    admission = Admission(registry, max_queue=4, retry_after_s=1)
    registry.on_stream_ended(large, "its stream ended")
    waiting = await asking(admission.acquire(PlacementRequest(range(500), 100)))
    assert not waiting.done()
    registry.register(large.who)
    assert (await waiting).verifier is large


async def test_who_waits_for_the_verifier_that_could_hold_it_holds_up_nobody_and_is_first_there(
    registry: Registry,
) -> None:
    small = join(registry, "small", max_sessions=2)
    large = registry.register(Register("large", "a:1", ModelInfo("toy", Vocabulary(50), 600), 1))
    admission, wanted = Admission(registry, max_queue=4, retry_after_s=1), PlacementRequest(range(500), 100)
    running = await admission.acquire(wanted)
    assert running.verifier is large
    waiting = [asyncio.create_task(admission.acquire(wanted)) for _ in range(2)]
    await settle()
    others = [await asyncio.wait_for(enter(admission), 1) for _ in range(2)]
    assert [lease.verifier for lease in others] == [small, small] and admission.queued == 2
    late = asyncio.create_task(enter(admission))
    running.release()
    await settle()
    assert [task.done() for task in (*waiting, late)] == [True, False, False], "no verifier has room"
    others[0].release()
    await settle()
    assert late.done() and not waiting[1].done()
    waiting[0].result().release()
    assert (await waiting[1]).verifier is large


async def test_choices_that_a_verifier_has_places_for_that_is_away_are_too_many_now_and_not_for_ever(
    registry: Registry,
) -> None:
    member = join(registry, "v1", max_sessions=2)
    admission = Admission(registry, max_queue=1, retry_after_s=1)
    registry.on_stream_ended(member, "its stream ended")
    with pytest.raises(Exhausted):
        admission.permit(3)
    with pytest.raises(InvalidRequest, match="ask for 3 choices at most"):
        admission.permit(4)


async def test_a_second_word_of_one_session_makes_up_for_no_failure_of_others(registry: Registry) -> None:
    member = join(registry, "v1")
    lease = await enter(Admission(registry, max_queue=1, retry_after_s=1))
    lease.succeeded()
    member.breaker.failed()
    lease.succeeded()
    assert member.breaker.failures == 1


async def test_who_waits_for_a_sound_verifier_holds_up_nobody(registry: Registry) -> None:
    member = join(registry, "v1", max_sessions=2)
    admission = Admission(registry, max_queue=4, retry_after_s=1)
    member.breaker.failed()
    again = await asking(admission.acquire(again=True))
    other = await asking(enter(admission))
    assert other.done() and other.result().verifier is member, "and no sweep is waited for"
    assert not again.done() and admission.queued == 1
    again.cancel()
    await asyncio.wait({again})


async def test_a_verifier_that_fails_every_try_is_not_waited_for_for_ever(
    registry: Registry, clock: ManualClock
) -> None:
    member = join(registry, "v1")
    admission = Admission(registry, max_queue=4, retry_after_s=1, failover_s=3.0)
    member.breaker.failed()
    again = await asking(admission.acquire(again=True))
    while not again.done() and clock.now() < 60:
        clock.advance(0.5)
        if member.breaker.admits:  # somebody else's turn
            member.breaker.failed()
        admission.serve_waiting()
        await settle()
    with pytest.raises(
        Unavailable, match="no verifier took it over in 3 s: every verifier that takes sessions has just failed"
    ):
        await again


async def test_a_rank_that_keeps_failing_closes_its_group_only_for_as_long_as_a_dying_one_looks_alive(
    registry: Registry, clock: ManualClock
) -> None:
    bad, *others = join_group(registry, 4)
    admission = Admission(registry, max_queue=4, retry_after_s=1)
    for _ in range(6):
        clock.advance(bad.breaker.cool_down_s)
        bad.breaker.failed()
    assert bad.breaker.cool_down_s > 10
    again = await asking(admission.acquire(again=True))
    clock.advance(1.9)
    admission.serve_waiting()
    await settle()
    assert not again.done(), "its group may be about to be lost"
    clock.advance(0.2)
    admission.serve_waiting()
    await settle()
    assert again.done() and again.result().verifier in others
    for rank in others:
        rank.running = 3
    clock.advance(bad.breaker.cool_down_s)
    assert bad.breaker.admits
    assert (await admission.acquire(again=True)).verifier in others, "busier than the one that failed last"


async def test_requests_that_a_failing_group_still_serves_do_not_prolong_the_wait_of_one_that_it_let_down(
    registry: Registry, clock: ManualClock
) -> None:
    bad, good = join_group(registry, 2)
    admission = Admission(registry, max_queue=4, retry_after_s=1, failover_s=3.0)
    bad.breaker.failed()
    again = asyncio.create_task(admission.acquire(again=True))
    for _ in range(3):
        await settle()
        assert not again.done()
        lease = await enter(admission)
        assert lease.verifier is good
        lease.release()
        clock.advance(1.0)
        bad.breaker.failed()
        admission.serve_waiting()
    await settle()
    assert again.done()
    with pytest.raises(Unavailable, match="no verifier took it over in 3 s"):
        await again


class Crowded:
    """A queue of four before one verifier with one place, which somebody has."""

    def __init__(self, registry: Registry) -> None:
        join(registry, "v1")
        self.admission = Admission(registry, max_queue=4, retry_after_s=1)

    async def begin(self) -> Crowded:
        self.running = await enter(self.admission)
        return self

    async def ask(self, client: str, choices: int = 1) -> list[asyncio.Task[Lease]]:
        """A request whose prompt was read: its choices, each of which waits for a place."""
        owner = QueueOwner(client)
        with self.admission.permit(choices, owner):
            pass
        waiting = [asyncio.create_task(self.admission.acquire(owner=owner)) for _ in range(choices)]
        await settle()
        return waiting

    async def end(self, *requests: list[asyncio.Task[Lease]]) -> None:
        tasks = [task for request in requests for task in request]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def crowded(registry: Registry) -> Crowded:
    return await Crowded(registry).begin()


async def test_a_request_gives_way_with_all_of_its_choices(crowded: Crowded) -> None:
    first, flood = await crowded.ask("flood"), await crowded.ask("flood", 3)
    alice = await crowded.ask("alice")
    for choice in flood:
        with pytest.raises(Exhausted, match="most of it is of this client"):
            await choice
    assert not first[0].done() and crowded.admission.queued == 2
    await crowded.end(first, alice)


async def test_a_request_of_which_a_choice_had_a_place_never_gives_way(crowded: Crowded) -> None:
    flood = await crowded.ask("flood", 4)
    crowded.running.release()
    running = await flood[0]
    rest = await crowded.ask("flood")
    (await crowded.ask("alice"))[0].cancel()
    with pytest.raises(Exhausted, match="most of it is of this client"):
        await rest[0]
    running.release()  # the choice is over, and was told to the caller
    running = await flood[1]
    flooded, others = await crowded.ask("flood"), await crowded.ask("bob")
    with pytest.raises(Exhausted, match="1 requests run and 4 wait"):
        await crowded.ask("alice", 2)
    assert not any(task.done() for task in (*flood[2:], *flooded, *others))
    await crowded.end(flood, flooded, others)


async def test_nobody_gives_way_to_a_request_that_finds_no_room_even_so(crowded: Crowded) -> None:
    flood = [await crowded.ask("flood") for _ in range(4)]
    with pytest.raises(Exhausted, match="1 requests run and 4 wait, which is all there is room for beside one for 3 c"):
        await crowded.ask("alice", 3)
    assert crowded.admission.queued == 4
    await crowded.end(*flood)


async def test_nobody_gives_way_to_a_request_whose_prompt_is_refused(crowded: Crowded) -> None:
    flood = [await crowded.ask("flood") for _ in range(4)]
    with pytest.raises(InvalidRequest), crowded.admission.permit(1, QueueOwner("alice")):
        raise InvalidRequest("prompt", "is too long")
    await settle()
    assert crowded.admission.queued == 4 and not any(task.done() for (task,) in flood)
    await crowded.end(*flood)


async def test_no_more_prompts_are_read_than_there_is_room_for_once_others_give_way(crowded: Crowded) -> None:
    """Of four the flooder has he keeps one: who has one more has no less than he."""
    flood, admission = [await crowded.ask("flood") for _ in range(4)], crowded.admission
    permits: list[tuple[QueueOwner, AbstractContextManager[None]]] = []
    for owner in map(QueueOwner, ("alice", "bob", "carol")):
        permits.append((owner, permit := admission.permit(1, owner)))
        permit.__enter__()
    with pytest.raises(Exhausted, match="1 requests run and 7 wait"):
        admission.permit(1, QueueOwner("dave"))
    assert admission.queued == 4
    entered: list[asyncio.Task[Lease]] = []
    for owner, permit in permits:
        permit.__exit__(None, None, None)
        entered.append(asyncio.create_task(admission.acquire(owner=owner)))
        await settle()
        assert admission.queued == 4
    assert [task.done() for (task,) in flood] == [False, True, True, True]
    await crowded.end(*flood, entered)


async def test_who_was_let_in_since_others_would_give_way_is_refused_if_they_cannot_any_more(crowded: Crowded) -> None:
    flood = await crowded.ask("flood", 4)
    permit = crowded.admission.permit(2, QueueOwner("alice"))
    permit.__enter__()
    crowded.running.release()
    await settle()
    assert flood[0].done(), "the request has begun"
    with pytest.raises(Exhausted, match="1 requests run and 3 wait"):
        permit.__exit__(None, None, None)
    assert crowded.admission.queued == 3 and not any(task.done() for task in flood[1:])
    await crowded.end(flood)


async def test_nobody_gives_way_if_there_is_room_by_then(crowded: Crowded) -> None:
    flood = [await crowded.ask("flood") for _ in range(4)]
    with crowded.admission.permit(1, QueueOwner("alice")):
        crowded.running.release()
        await settle()
    assert [task.done() for (task,) in flood] == [True, False, False, False]
    await crowded.end(*flood)


async def test_who_had_room_when_his_prompt_was_taken_keeps_it_when_there_is_less(registry: Registry) -> None:
    join(registry, "v1")
    admission = Admission(registry, max_queue=0, retry_after_s=1)
    await enter(admission)
    other = join(registry, "v2")
    with admission.permit():
        registry.remove(other, "it was killed")
    waiting = await asking(admission.acquire())
    assert not waiting.done() and admission.queued == 1
    waiting.cancel()
    await asyncio.wait({waiting})
