"""Rank groups, over real gRPC: who is there, what is placed on them, and which wave they are told to begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from specsplit.clock import ManualClock
from specsplit.errors import InvalidRequest, Unavailable
from specsplit.membership import Directive, Drain, Draining, GroupRank, Register, StartWave, WaveReport
from specsplit.values import ModelInfo, Vocabulary
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.run import MAX_PLACEMENTS, RetryBudget
from tests.coordinator.test_join import Member
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from .conftest import Cluster, Script


class Ranks:
    """The ranks of a group, driven by hand."""

    def __init__(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self._stack = stack

    async def join(self, rank: int, size: int = 2, group: str = "g") -> Member:
        """One that is in when this returns."""
        member = Member(self.cluster.address)
        self._stack.push_async_callback(member.hang_up)
        model = ModelInfo("toy", self.cluster.tokenizer.vocabulary, 512)
        member.say(Register(f"v{rank}{group}", "127.0.0.1:9", model, 4, group=GroupRank(group, rank, size)))
        await member.hear()
        return member


@pytest.fixture
async def ranks(cluster: Cluster) -> AsyncIterator[Ranks]:
    async with AsyncExitStack() as stack:
        yield Ranks(cluster, stack)


async def next_wave(member: Member, after: int = 0) -> int:
    async with asyncio.timeout(60):
        while not (isinstance(directive := await member.hear(), StartWave) and directive.number > after):
            pass
    return directive.number


async def test_a_group_gets_sessions_once_all_of_its_ranks_are_there_and_none_when_one_is_lost(
    cluster: Cluster, ranks: Ranks
) -> None:
    admission, registry = cluster.coordinator.admission, cluster.coordinator.registry
    await ranks.join(0, size=3)
    with pytest.raises(Unavailable, match="no verifier takes sessions: a group of 3 ranks lacks rank 1 and 2; try"):
        await cluster.client.generate("x")
    again = asyncio.ensure_future(admission.acquire(again=True))
    await ranks.join(1, size=3)
    assert not again.done(), "two thirds of a group step for nobody"
    third = await ranks.join(2, size=3)
    lease = await asyncio.wait_for(again, 5)
    assert [member.free_places for member in registry.verifiers] == [3, 4, 4]
    await third.hang_up()
    await eventually(lambda: len(registry.verifiers) == 2)
    assert [member.free_places for member in registry.verifiers] == [0, 0]
    with pytest.raises(Unavailable, match="lacks rank 2"):
        await cluster.client.generate("x")
    lease.release()


async def test_a_parked_group_that_loses_a_rank_is_woken_so_that_the_others_notice(
    cluster: Cluster, ranks: Ranks
) -> None:
    members = [await ranks.join(rank) for rank in range(2)]
    await members[1].hang_up()
    assert await next_wave(members[0]) == 1
    assert await next_wave(await ranks.join(1)) == 1, "it was its stream alone: it takes part"


async def test_a_group_that_leaves_is_woken_only_for_one_that_still_has_work(cluster: Cluster, ranks: Ranks) -> None:
    members = [await ranks.join(rank, size=3) for rank in range(3)]
    members[2].say(Draining())
    await eventually(lambda: all(member.closed_because for member in cluster.coordinator.registry.verifiers))
    await members[2].hang_up()
    await eventually(lambda: len(cluster.coordinator.registry.verifiers) == 2)
    group = cluster.coordinator.registry.verifiers[0].group
    assert group is not None and group.wave == 0
    members[0].say(WaveReport(wanted=True))
    assert [await next_wave(member) for member in members[:2]] == [1, 1]


async def test_who_was_let_down_by_a_rank_is_not_given_to_another_of_its_group_since_ranks_are_lost_together(
    cluster: Cluster, ranks: Ranks
) -> None:
    admission, registry = cluster.coordinator.admission, cluster.coordinator.registry
    for rank in range(2):
        await ranks.join(rank)
    registry.verifiers[0].breaker.failed()
    again = asyncio.ensure_future(admission.acquire(again=True))
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


async def test_another_verifier_serves_while_a_group_is_not_whole(
    cluster: Cluster, ranks: Ranks, say: Callable[..., Script]
) -> None:
    await ranks.join(0)
    await cluster.add_verifier(say((5,), (6,)), "alone", max_sessions=1)
    for _ in range(2):
        assert (await cluster.client.generate("x")).done.verifier == "alone"


async def test_a_session_that_is_placed_on_a_parked_group_starts_a_wave_on_every_rank_once(
    cluster: Cluster, ranks: Ranks
) -> None:
    admission = cluster.coordinator.admission
    members = [await ranks.join(rank) for rank in range(2)]
    first = await admission.acquire()
    assert [await next_wave(member) for member in members] == [1, 1]
    second = await admission.acquire()
    for member in members:
        member.say(WaveReport(1, parked=False))
    members[0].say(WaveReport(1, parked=True))
    members[1].say(WaveReport(1, parked=True, wanted=True))
    assert [await next_wave(member) for member in members] == [2, 2], "one of them had work left"
    first.release()
    second.release()


async def test_a_rank_that_comes_back_is_told_the_wave_and_a_coordinator_learns_it_from_the_ranks(
    cluster: Cluster, ranks: Ranks
) -> None:
    here = await ranks.join(0)
    here.say(WaveReport(7, parked=True, wanted=True))
    other = await ranks.join(1)
    assert [await next_wave(member, after=7) for member in (here, other)] == [8, 8], "only now is the group whole"
    await other.hang_up()
    await eventually(lambda: len(cluster.coordinator.registry.verifiers) == 1)
    assert await next_wave(await ranks.join(1)) == 8
    told = {member.member_id: (member.group, member.wave) for member in (await cluster.client.cluster()).members}
    assert told["v0g"] == (GroupRank("g", 0, 2), WaveReport(7, parked=True, wanted=True))
    assert told["v1g"] == (GroupRank("g", 1, 2), None)


async def test_a_group_of_which_one_rank_drains_is_told_to_leave_and_gets_no_more_sessions(
    cluster: Cluster, ranks: Ranks
) -> None:
    members = [await ranks.join(rank) for rank in range(2)]
    members[1].say(Draining())
    for member in members:  # the one that drains too: it waits until it is heard
        while not isinstance(await member.hear(), Drain):
            pass
    with pytest.raises(Unavailable, match="no verifier takes sessions: a group of 2 ranks is draining; try"):
        await cluster.client.generate("x")
    await members[1].hang_up()
    await eventually(lambda: len(cluster.coordinator.registry.verifiers) == 1)
    again = await ranks.join(1)
    while not isinstance(await again.hear(), Drain):
        pass


async def test_a_group_that_has_started_anew_is_another_one(cluster: Cluster, ranks: Ranks) -> None:
    old = await ranks.join(0)
    old.say(WaveReport(7, parked=False))
    members = [await ranks.join(rank, group="h") for rank in range(2)]
    members[0].say(WaveReport(wanted=True))
    assert [await next_wave(member) for member in members] == [1, 1]


async def test_what_cannot_be_of_one_group_is_refused(ranks: Ranks) -> None:
    await ranks.join(0)
    with pytest.raises(InvalidRequest, match=r"group\.rank.*is 0, which is in the cluster already") as caught:
        await refused(ranks, 0, 2, name="other")
    assert caught.value.field == "register.group.rank"
    with pytest.raises(InvalidRequest, match="is 3; another rank of it said 2"):
        await refused(ranks, 1, 3)


async def refused(ranks: Ranks, rank: int, size: int, name: str = "") -> list[Directive]:
    member = Member(ranks.cluster.address)
    try:
        model = ModelInfo("toy", ranks.cluster.tokenizer.vocabulary, 512)
        member.say(Register(name or f"v{rank}", "127.0.0.1:9", model, 4, group=GroupRank("g", rank, size)))
        return await member.hear_first(1)
    finally:
        await member.hang_up()


async def test_a_member_that_is_alone_has_no_waves(cluster: Cluster) -> None:
    member = Member(cluster.address)
    member.say(Register("v", "127.0.0.1:9", ModelInfo("toy", cluster.tokenizer.vocabulary, 512), 4))
    member.say(WaveReport(1))
    with pytest.raises((InvalidRequest, Unavailable), match="is registered as one that is alone"):
        await member.hear_out()
    await member.hang_up()


def test_a_rank_of_a_group_that_leaves_is_waited_for_like_one_that_drains_however_often_it_failed() -> None:
    clock = ManualClock()
    registry = Registry(Vocabulary(50), clock, 2.0)
    model = ModelInfo("toy", Vocabulary(50), 512)
    one, other = (registry.register(Register(f"v{k}", "a:1", model, 4, group=GroupRank("g", k, 2))) for k in range(2))
    while one.breaker.failures < MAX_PLACEMENTS:
        one.breaker.failed()
        clock.advance(one.breaker.cool_down_s)
    assert not RetryBudget().allows(1, one, [one])
    registry.drain(other)
    assert RetryBudget().allows(1, one, [one]) and not one.draining
