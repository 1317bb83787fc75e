"""Join over real gRPC: members come, report, drain, fall silent and leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from specsplit.build import build
from specsplit.client import Done
from specsplit.errors import InvalidRequest, Unavailable
from specsplit.features import LAST, FeatureFormat, FeatureNeed
from specsplit.membership import (
    Directive,
    Draining,
    Heartbeat,
    PlanOrder,
    Register,
    Registered,
    Report,
    Roster,
    TracingOrder,
)
from specsplit.rpc import Phase, dial, from_rpc_error
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished
from specsplit.v1 import cluster_pb2, cluster_pb2_grpc
from specsplit.values import DrafterInfo, DrafterKind, Endpoint, FinishReason, Load, ModelInfo
from specsplit.wire import cluster as wire
from specsplit.wire.cluster import directive_from_wire, report_from_wire, report_to_wire
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]
NGRAM = DrafterInfo(DrafterKind.NGRAM, "", None, 512)


class Member:
    """A member driven by hand: what it says and what it is told."""

    def __init__(self, address: str) -> None:
        self._channel = dial(address)
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()
        self._call = cluster_pb2_grpc.ClusterServiceStub(self._channel).Join(self._outgoing())
        self._directives = aiter(self._call)

    async def _outgoing(self) -> AsyncIterator[cluster_pb2.JoinRequest]:
        while (report := await self._reports.get()) is not None:
            yield report_to_wire(report)

    def say(self, report: Report | None) -> None:
        self._reports.put_nowait(report)

    async def hear(self) -> Directive:
        """The next directive; when an order was given is left out."""
        directive = await self.hear_whole()
        return replace(directive, ordered_ms=0) if isinstance(directive, PlanOrder | TracingOrder) else directive

    async def hear_whole(self) -> Directive:
        try:
            return directive_from_wire(await asyncio.wait_for(anext(self._directives), 5))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def hear_first(self, number: int) -> list[Directive]:
        """The first directives."""
        return [await self.hear() for _ in range(number)]

    async def hear_out(self) -> None:
        """Listen until the stream fails."""
        while True:
            await self.hear()

    async def hang_up(self) -> None:
        self._call.cancel()
        await self._channel.close()


@pytest.fixture
async def member(cluster: Cluster) -> AsyncIterator[Member]:
    member = Member(cluster.address)
    yield member
    await member.hang_up()


def verifier(cluster: Cluster, name: str = "v1") -> Register:
    return Register(name, "127.0.0.1:9", ModelInfo("toy", cluster.tokenizer.vocabulary, 512), 4)


async def test_a_verifier_is_told_the_interval_and_the_roster_and_every_change_of_it(
    cluster: Cluster, member: Member
) -> None:
    member.say(verifier(cluster))
    assert await member.hear_first(4) == [Registered(50), Roster(), PlanOrder(), TracingOrder()]
    task = await cluster.join("d1", "127.0.0.1:8", NGRAM)
    assert await member.hear() == Roster((Endpoint("d1", "127.0.0.1:8"),))
    task.cancel()
    assert await member.hear() == Roster()


async def test_a_member_whose_name_has_control_characters_is_told_so_and_is_no_member(cluster: Cluster) -> None:
    async with dial(cluster.address) as channel:
        call = cluster_pb2_grpc.ClusterServiceStub(channel).Join()
        request = report_to_wire(verifier(cluster))
        request.register.member_id = "v1\nlost v2"
        await call.write(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidRequest) and error.field == "register.member_id"
    assert r"'v1\nlost v2'" in error.problem
    assert (await cluster.client.cluster()).members == ()


async def test_a_roster_and_get_cluster_say_what_a_head_needs_of_the_target(cluster: Cluster, member: Member) -> None:
    need = FeatureNeed((2, 3, LAST), 256, FeatureFormat.BFLOAT16, "ab" * 32, 64)
    head = DrafterInfo(DrafterKind.EAGLE3, "head", cluster.tokenizer.vocabulary, 512, need)
    await cluster.join("n1", "127.0.0.1:8", NGRAM)
    await cluster.join("e1", "127.0.0.1:7", head)
    member.say(verifier(cluster))
    assert await member.hear() == Registered(50)
    assert await member.hear() == Roster((Endpoint("e1", "127.0.0.1:7", need), Endpoint("n1", "127.0.0.1:8")))
    roles = {seen.member_id: seen.role for seen in (await cluster.client.cluster()).members}
    assert (roles["e1"], roles["n1"]) == (head, NGRAM)


async def test_get_cluster_says_which_build_each_is_and_nothing_for_one_that_does_not_tell(
    cluster: Cluster, member: Member
) -> None:
    member.say(replace(verifier(cluster), build="0.1.0+abc"))
    await cluster.join("n1", "127.0.0.1:8", NGRAM)
    await member.hear()
    told = await cluster.client.cluster()
    assert {each.member_id: each.build for each in told.members} == {"v1": "0.1.0+abc", "n1": ""}
    assert told.build == build()


async def test_load_and_drain_are_seen_by_get_cluster(cluster: Cluster, member: Member) -> None:
    member.say(verifier(cluster))
    member.say(Heartbeat(Load(sessions=3, free_pages=7, total_pages=9)))
    member.say(Draining())
    await eventually(lambda: any(m.draining for m in cluster.coordinator.registry.members))
    (seen,) = (await cluster.client.cluster()).members
    assert (seen.member_id, seen.load.sessions, seen.load.free_pages, seen.draining) == ("v1", 3, 7, True)
    assert seen.max_sessions == 4
    with pytest.raises(Unavailable, match="no verifier takes sessions: v1 is draining"):
        await cluster.client.generate("x")


async def test_a_member_that_falls_silent_is_lost_and_told_so(cluster: Cluster, member: Member) -> None:
    member.say(verifier(cluster))
    await member.hear_first(4)
    with pytest.raises(Unavailable, match="silent for"):
        await member.hear()
    assert cluster.coordinator.registry.members == ()


async def test_a_heartbeat_that_says_what_the_last_one_said_counts_and_is_not_read_again(
    cluster: Cluster, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[Report]()

    def counting(message: cluster_pb2.JoinRequest) -> Report:
        read.append(report_from_wire(message))
        return read[-1]

    monkeypatch.setattr(wire, "report_from_wire", counting)
    registry, one, other = cluster.coordinator.registry, Heartbeat(Load(sessions=1)), Heartbeat(Load(sessions=2))
    for report in (verifier(cluster), one, one, one, other, other, one):
        member.say(report)
    await eventually(lambda: registry.heartbeats == 6)
    assert read == [verifier(cluster), one, other, one]
    assert registry.verifiers[0].load.sessions == 1


async def test_a_member_that_reports_stays(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(lost_after_ms=800)
    await cluster.join("d1", "127.0.0.1:8", NGRAM)
    await asyncio.sleep(1.2)
    assert [member.member_id for member in cluster.coordinator.registry.drafters] == ["d1"]


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_a_member_whose_stream_ends_is_gone_at_once(cluster: Cluster, member: Member, hangs_up: bool) -> None:
    member.say(verifier(cluster))
    await member.hear()
    if hangs_up:
        await member.hang_up()
    else:
        member.say(None)
    await eventually(lambda: cluster.coordinator.registry.members == ())


async def test_a_second_member_with_the_same_name_is_refused(cluster: Cluster, member: Member) -> None:
    await cluster.join("same", "127.0.0.1:8", NGRAM)
    member.say(Register("same", "127.0.0.1:7", NGRAM, 1))
    with pytest.raises(InvalidRequest, match=r"'same' is already in the cluster, at 127\.0\.0\.1:8"):
        await member.hear()


@pytest.mark.parametrize("report", [Heartbeat(), Draining(), None])
async def test_a_member_must_first_say_who_it_is(member: Member, report: Report | None) -> None:
    member.say(report)
    with pytest.raises(InvalidRequest, match="must be register"):
        await member.hear()


async def test_who_does_not_say_who_it_is_for_as_long_as_a_member_may_be_silent_is_sent_away(
    start_cluster: StartCluster,
) -> None:
    cluster = await start_cluster(lost_after_ms=200)
    member = Member(cluster.address)
    with pytest.raises(InvalidRequest, match=r"none came in 0.2 s; the first message of a member must be register"):
        await member.hear()
    await member.hang_up()


async def test_registering_twice_ends_the_membership(cluster: Cluster, member: Member) -> None:
    member.say(verifier(cluster))
    member.say(verifier(cluster, "v2"))
    with pytest.raises(InvalidRequest, match="registered already"):
        await member.hear_out()
    assert cluster.coordinator.registry.members == ()


async def test_sessions_of_a_verifier_that_leaves_go_on_when_it_comes_back(cluster: Cluster, say: Say) -> None:
    scripted = await cluster.add_verifier(say((5,), then_wait=True), "v1")
    async with aclosing(cluster.client.stream("x")) as events:
        await anext(events)
        registry = cluster.coordinator.registry
        registry.remove(registry.verifiers[0], "it was silent for 9.0 s")
        await eventually(lambda: len(scripted.asked) == 2 and scripted.open == 1)
        assert scripted.asked[1].tokens == (*scripted.asked[0].tokens, 5)
    await eventually(lambda: cluster.coordinator.admission.running == 0 and scripted.open == 0)


@pytest.mark.parametrize(
    "address", ["unix:/run/docker.sock:1", "dns://8.8.8.8/internal:80", "xds:///a:1", "0.0.0.0:80"]
)
async def test_a_member_cannot_make_others_dial_what_is_no_host_and_port(cluster: Cluster, address: str) -> None:
    register = cluster_pb2.JoinRequest(register=report_to_wire(verifier(cluster)).register)
    register.register.address = address
    async with dial(cluster.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in cluster_pb2_grpc.ClusterServiceStub(channel).Join(aiter_of(register)):
                pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(from_rpc_error(caught.value)).startswith("register.address: is ")
    assert (await cluster.client.cluster()).members == ()


async def aiter_of(*messages: cluster_pb2.JoinRequest) -> AsyncIterator[cluster_pb2.JoinRequest]:
    for message in messages:
        yield message


def ending(script: Script, go_on: asyncio.Event) -> Script:
    """What a script says, and its end once that is told to go on."""

    async def held(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        async for event in script(request):
            if isinstance(event, Finished):
                await go_on.wait()
            yield event

    return held


@pytest.mark.parametrize("max_sessions", [4, 5])
async def test_a_break_of_join_alone_ends_no_session_if_the_same_verifier_comes_back(
    cluster: Cluster, say: Say, max_sessions: int
) -> None:
    go_on = asyncio.Event()
    scripted = await cluster.add_verifier(ending(say((5,)), go_on), "v1")
    registry = cluster.coordinator.registry
    (member,) = registry.verifiers
    async with aclosing(cluster.client.stream("x")) as events:
        await anext(events)
        _, joined = cluster.joined["v1"]
        joined.cancel()
        await eventually(lambda: registry.verifiers == ())
        assert scripted.open == 1, "its call is healthy"
        await cluster.join(
            "v1", scripted.address, ModelInfo("toy", cluster.tokenizer.vocabulary, 512, (0,)), max_sessions
        )
        same = max_sessions == 4
        assert (registry.verifiers[0] is member) is same
        go_on.set()
        done = [event async for event in events][-1]
    assert isinstance(done, Done) and done.reason is FinishReason.STOP
    assert len(scripted.asked) == (1 if same else 2), "one that has changed is another"


async def test_a_break_of_join_ends_no_session_while_the_coordinator_drains_and_members_come_until_it_leaves(
    start_cluster: StartCluster, say: Say
) -> None:
    cluster = await start_cluster(lost_after_ms=500)
    go_on = asyncio.Event()
    scripted = await cluster.add_verifier(ending(say((5,)), go_on), "v1")
    registry, server = cluster.coordinator.registry, cluster.coordinator.service.server
    (member,) = registry.verifiers
    async with aclosing(cluster.client.stream("x")) as events:
        await anext(events)
        draining = asyncio.create_task(cluster.coordinator.service.serve(signals=False))
        server.leave()
        await eventually(lambda: server.phase is Phase.DRAINING)
        cluster.joined["v1"][1].cancel()
        await eventually(lambda: registry.verifiers == ())
        await cluster.join("v1", scripted.address, ModelInfo("toy", cluster.tokenizer.vocabulary, 512, (0,)))
        await cluster.join("d1", "127.0.0.1:8", NGRAM)  # a new one is as welcome: what waits may need it
        assert registry.verifiers == (member,)
        go_on.set()
        done = [event async for event in events][-1]
    assert isinstance(done, Done) and done.reason is FinishReason.STOP
    assert len(scripted.asked) == 1, "its call was healthy"
    assert await asyncio.wait_for(draining, 10) == 0


async def test_who_comes_once_the_members_were_dismissed_is_told_that_the_coordinator_leaves(
    cluster: Cluster, member: Member
) -> None:
    cluster.coordinator._members.dismiss()  # pyright: ignore[reportPrivateUsage]
    member.say(verifier(cluster))
    with pytest.raises(Unavailable, match="the coordinator is leaving; it may come back"):
        await member.hear()


async def test_the_sessions_of_a_verifier_that_stays_away_go_elsewhere(start_cluster: StartCluster, say: Say) -> None:
    cluster = await start_cluster(lost_after_ms=400)
    left = await cluster.add_verifier(say((5,), then_wait=True), "v1")
    async with aclosing(cluster.client.stream("x")) as events:
        await anext(events)
        taker = await cluster.add_verifier(say((6,)), "v2")
        cluster.joined["v1"][1].cancel()
        done = [event async for event in events][-1]
    assert isinstance(done, Done) and done.verifier == "v2"
    assert taker.asked[0].tokens == (*left.asked[0].tokens, 5)
    await eventually(lambda: left.open == 0)


async def test_requests_wait_for_the_only_verifier_while_its_join_alone_is_broken(cluster: Cluster, say: Say) -> None:
    scripted = await cluster.add_verifier(say((5,)), "v1")
    cluster.joined["v1"][1].cancel()
    await eventually(lambda: cluster.coordinator.registry.awaited)
    asked = asyncio.create_task(cluster.client.generate("x"))
    await eventually(lambda: cluster.coordinator.admission.queued == 1)
    await cluster.join("v1", scripted.address, ModelInfo("toy", cluster.tokenizer.vocabulary, 512, (0,)), 4)
    async with asyncio.timeout(30):
        assert (await asked).usage.completion_tokens
