"""A member's side of Join, against a coordinator that says what the test tells it to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from specsplit.clock import SystemClock
from specsplit.errors import Unavailable
from specsplit.membership import (
    AdaptersReport,
    Directive,
    Drain,
    Draining,
    GroupRank,
    HandOver,
    Heartbeat,
    PlanOrder,
    Register,
    Registered,
    Report,
    Roster,
    StartWave,
    TracingOrder,
    WaveReport,
)
from specsplit.ranks.lockstep import Lockstep
from specsplit.ranks.rank import Rank
from specsplit.rpc import CLUSTER_SERVICE, Context, Coordinators, Memberships, Server, member_id_of
from specsplit.settings import CoordinatorSettings, DrafterSettings
from specsplit.v1 import cluster_pb2, cluster_pb2_grpc
from specsplit.values import (
    Adapter,
    Adaptive,
    Control,
    DrafterInfo,
    DrafterKind,
    Endpoint,
    Load,
    ModelInfo,
    PlanChanges,
    TraceChanges,
    Vocabulary,
)
from specsplit.wire.cluster import directive_to_wire, report_from_wire
from tests.support.meshes import mesh_of

REGISTER = Register("drafter-1", "127.0.0.1:7", DrafterInfo(DrafterKind.NGRAM, "", None, 128), 4)
ROSTER = Roster((Endpoint("drafter-2", "127.0.0.1:8"),))


class Script(cluster_pb2_grpc.ClusterServiceServicer):
    """Registers everyone, keeps their reports, and sends what is put into `directives` (None ends the stream)."""

    def __init__(self, refusals: int = 0, interval_ms: int = 20) -> None:
        self.refusals = refusals
        self.interval_ms = interval_ms
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.directives: asyncio.Queue[Directive | None] = asyncio.Queue()

    async def Join(  # noqa: N802
        self, request_iterator: AsyncIterator[cluster_pb2.JoinRequest], context: Context
    ) -> AsyncIterator[cluster_pb2.JoinResponse]:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("not now")
        await self.reports.put(report_from_wire(await anext(request_iterator)))
        yield directive_to_wire(Registered(self.interval_ms))
        reading = asyncio.create_task(self._read(request_iterator))
        try:
            while (directive := await self.directives.get()) is not None:
                yield directive_to_wire(directive)
        finally:
            reading.cancel()

    async def _read(self, request_iterator: AsyncIterator[cluster_pb2.JoinRequest]) -> None:
        async for request in request_iterator:
            await self.reports.put(report_from_wire(request))

    async def next_report(self, wanted: Callable[[Report], bool] = lambda report: True) -> Report:
        async with asyncio.timeout(10):
            while not wanted(report := await self.reports.get()):
                pass
        return report


class Ear:
    """Hears what the membership passes on."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Roster | PlanOrder | TraceChanges | HandOver | int | None] = asyncio.Queue()

    def on_drain(self) -> None:
        self.heard.put_nowait(None)


def make_coordinator(script: Script) -> Server:
    server = Server(CoordinatorSettings(model=Path("unused"), listen="127.0.0.1:0"), "coordinator", services=[])
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(script, server.grpc)
    return server


@asynccontextmanager
async def coordinating(script: Script) -> AsyncIterator[str]:
    """A coordinator that does what its script says: where it is."""
    server = make_coordinator(script)
    address = await server.start()
    server.ready()
    try:
        yield address
    finally:
        await server.stop()


@asynccontextmanager
async def joined(script: Script, ear: Ear | None = None, rank: Rank | None = None) -> AsyncIterator[Memberships]:
    async with coordinating(script) as address, joined_at(address, ear or Ear(), rank) as member:
        yield member


@asynccontextmanager
async def joined_at(
    address: str, ear: Ear, rank: Rank | None = None, register: Register = REGISTER, **sources: Any
) -> AsyncIterator[Memberships]:
    member = Memberships(
        Coordinators(address),
        register,
        lambda: Load(sessions=3),
        **sources,
        on_roster=ear.heard.put_nowait,
        on_plan=ear.heard.put_nowait,
        on_hand_over=ear.heard.put_nowait,
        on_tracing=ear.heard.put_nowait,
        rank=rank,
        on_start_wave=ear.heard.put_nowait,
        on_drain=ear.on_drain,
    )
    running = asyncio.create_task(member.run())
    try:
        async with asyncio.timeout(10):
            await member.wait_joined()
        yield member
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_a_member_registers_first_and_then_reports_its_load_again_and_again() -> None:
    script = Script()
    async with joined(script) as member:
        assert member.joined
        assert await script.next_report() == REGISTER
        for _ in range(3):
            assert await script.next_report() == Heartbeat(Load(sessions=3), coordinators=1, home=True)


async def test_a_verifier_whose_adapters_change_says_so_at_once_and_comes_back_with_those_that_it_has_then() -> None:
    script, one, two = Script(interval_ms=60_000), Adapter("one", "11"), Adapter("two", "22")
    model, has = ModelInfo("toy", Vocabulary(16), 64, adapters=(one,)), list[tuple[Adapter, ...]](((one,),))
    register = replace(REGISTER, role=model)
    async with (
        coordinating(script) as address,
        joined_at(
            address, Ear(), register=register, adapters=lambda: has[-1], weights_version=lambda: len(has)
        ) as member,
    ):
        assert await script.next_report() == register
        told = Heartbeat(Load(sessions=3), weights_version=1, coordinators=1, home=True)
        assert await script.next_report() == told
        has.append((two, one))
        member.report_now()
        assert await script.next_report() == AdaptersReport((two, one))
        assert await script.next_report() == replace(told, weights_version=2), (
            "whoever has heard it knows of the adapters"
        )
        script.directives.put_nowait(None)
        assert await script.next_report() == replace(register, role=replace(model, adapters=(two, one)))
        assert await script.next_report() == replace(told, weights_version=2), "and they are not told twice"


async def test_directives_reach_the_member() -> None:
    script, ear = Script(), Ear()
    async with joined(script, ear):
        plan = PlanOrder(PlanChanges(num_steps=0), Control(Adaptive.GOODPUT, 8))
        tracing, move = TraceChanges(level=3, modules=("drafter",)), HandOver("d1", ROSTER.drafters[0], 2)
        for directive in (ROSTER, plan, TracingOrder(tracing), move, Drain()):
            script.directives.put_nowait(directive)
        async with asyncio.timeout(10):
            assert [await ear.heard.get() for _ in range(5)] == [ROSTER, plan, tracing, move, None]


async def test_a_rank_says_where_it_stands_and_may_leave_once_the_coordinator_knows_and_no_wave_is_to_begin() -> None:
    script, ear, clock = Script(), Ear(), SystemClock()
    lockstep, _ = await asyncio.gather(*(asyncio.to_thread(Lockstep, mesh, clock, 7) for mesh in mesh_of(2)))
    rank = Rank(lockstep, clock)
    async with joined(script, ear, rank) as member, asyncio.timeout(10):
        assert await script.next_report() == replace(REGISTER, group=GroupRank("7", 0, 2))
        assert await script.next_report() == WaveReport()
        assert not rank.may_leave, "the coordinator may place sessions"
        for directive in (StartWave(3), Drain()):
            script.directives.put_nowait(directive)
        assert [await ear.heard.get() for _ in range(2)] == [3, None]
        assert member.dismissed and not rank.may_leave, "the others begin the wave"
        await asyncio.to_thread(rank.start, 3)
        report = await script.next_report(lambda report: isinstance(report, WaveReport))
        assert report == WaveReport(3, parked=False)


async def test_a_rank_that_has_no_coordinator_may_leave() -> None:
    lockstep, _ = await asyncio.gather(*(asyncio.to_thread(Lockstep, mesh, SystemClock(), 7) for mesh in mesh_of(2)))
    rank = Rank(lockstep, SystemClock())
    member = Memberships(Coordinators("127.0.0.1:9"), REGISTER, Load, rank=rank)
    assert rank.may_leave and not member.dismissed


async def test_a_member_that_has_no_use_for_an_order_passes_it_by() -> None:
    script = Script()
    for directive in (ROSTER, PlanOrder(), TracingOrder(), HandOver("d1", ROSTER.drafters[0], 2), Drain(), None):
        script.directives.put_nowait(directive)
    server = make_coordinator(script)
    address = await server.start()
    server.ready()
    running = asyncio.create_task(Memberships(Coordinators(address), REGISTER, Load).run())
    for _ in range(2):  # it comes back after the stream has ended, so it has heard everything
        await script.next_report(lambda report: isinstance(report, Register))
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})
    await server.stop()


async def test_a_lost_drafter_is_reported_once() -> None:
    script = Script()
    async with joined(script) as member:
        member.report_lost("drafter-9")
        member.report_lost("drafter-9")
        heartbeat = await script.next_report(
            lambda report: isinstance(report, Heartbeat) and bool(report.lost_drafters)
        )
        assert heartbeat == Heartbeat(Load(sessions=3), ("drafter-9",), coordinators=1, home=True)
        assert await script.next_report() == Heartbeat(Load(sessions=3), coordinators=1, home=True)


async def test_a_draining_member_says_so_and_goes_on_reporting() -> None:
    script = Script()
    async with joined(script) as member:
        member.report_draining()
        assert await script.next_report(lambda report: isinstance(report, Draining)) == Draining()
        assert isinstance(await script.next_report(), Heartbeat)


async def test_a_member_comes_back_after_a_break() -> None:
    script = Script()
    async with joined(script):
        assert await script.next_report() == REGISTER
        script.directives.put_nowait(None)
        assert await script.next_report(lambda report: isinstance(report, Register)) == REGISTER


async def test_a_member_that_is_refused_tries_again() -> None:
    script = Script(refusals=2)
    async with joined(script):
        assert await script.next_report() == REGISTER


class Dropping(Script):
    """Registers everyone, and ends every stream at once."""

    joins = 0

    async def Join(  # noqa: N802
        self, request_iterator: AsyncIterator[cluster_pb2.JoinRequest], context: Context
    ) -> AsyncIterator[cluster_pb2.JoinResponse]:
        self.joins += 1
        yield directive_to_wire(Registered(20))
        raise Unavailable("not you")


async def test_a_member_that_is_registered_and_dropped_at_once_waits_longer_each_time_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "specsplit.rpc.retry")
    script = Dropping()
    async with joined(script), asyncio.timeout(60):
        while script.joins < 3:  # it has said what there is to say of the second; how long it waits, test_retry.py has
            await asyncio.sleep(0.02)
    said = [record.getMessage() for record in caplog.records if record.name == "specsplit.rpc.retry"]
    assert said == ["joined the cluster", "not in the cluster, will retry: not you", "joined the cluster"]


class Newer(Script):
    """Says something that no version knows yet, and then what `Script` says."""

    async def Join(  # noqa: N802
        self, request_iterator: AsyncIterator[cluster_pb2.JoinRequest], context: Context
    ) -> AsyncIterator[cluster_pb2.JoinResponse]:
        yield cluster_pb2.JoinResponse.FromString(b"\xfa\x7f\x02hi")  # field 2047
        async for directive in super().Join(request_iterator, context):
            yield directive


async def test_a_member_passes_over_a_directive_that_its_version_does_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script, ear = Newer(), Ear()
    async with joined(script, ear), asyncio.timeout(10):
        script.directives.put_nowait(ROSTER)
        assert await ear.heard.get() == ROSTER
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == "passed over: directive: is none that this version knows; update this member"


async def test_a_member_waits_for_a_coordinator_that_is_not_there() -> None:
    member = Memberships(Coordinators("127.0.0.1:1"), REGISTER, Load)
    running = asyncio.create_task(member.run())
    await asyncio.sleep(0.3)
    assert not running.done()
    assert not member.joined
    running.cancel()
    await asyncio.wait({running})


def test_a_member_is_named_as_set_or_after_its_address() -> None:
    ngram = DrafterKind.NGRAM
    assert member_id_of(DrafterSettings(kind=ngram, member_id="mine"), "drafter", "10.0.0.1:7") == "mine"
    assert member_id_of(DrafterSettings(kind=ngram), "drafter", "10.0.0.1:7") == "drafter-10.0.0.1:7"


class Garbling(Script):
    """Registers everyone, and then sends once what is no directive."""

    def __init__(self) -> None:
        super().__init__()
        self.garbage = [b"\xff\xff"]

    def handler(self) -> grpc.GenericRpcHandler:
        join = grpc.stream_stream_rpc_method_handler(self.join, cluster_pb2.JoinRequest.FromString)
        return grpc.method_handlers_generic_handler(CLUSTER_SERVICE, {"Join": join})

    async def join(self, requests: AsyncIterator[cluster_pb2.JoinRequest], context: Context) -> AsyncIterator[bytes]:
        async for directive in self.Join(requests, context):
            yield directive.SerializeToString()
            if self.garbage:
                yield self.garbage.pop()


async def test_a_member_that_is_sent_what_is_no_directive_says_so_once_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Garbling()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((script.handler(),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    running = asyncio.create_task(Memberships(Coordinators(address), REGISTER, Load).run())
    for _ in range(2):
        await script.next_report(lambda report: isinstance(report, Register))
    await script.next_report(lambda report: isinstance(report, Heartbeat))
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})
    await server.stop(None)
    complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["the peer sent what is not a JoinResponse" in record.getMessage() for record in complaints] == [True]


@pytest.mark.parametrize("where", ["on_roster", "load"])
async def test_a_bug_of_a_members_own_is_logged_and_does_not_end_its_membership(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    script, failures = Script(), [ZeroDivisionError("a bug")]

    def fail_once() -> None:
        if failures:
            raise failures.pop()

    def load() -> Load:
        if where == "load":
            fail_once()
        return Load()

    def on_roster(roster: Roster) -> None:
        fail_once()

    server = make_coordinator(script)
    address = await server.start()
    server.ready()
    script.directives.put_nowait(ROSTER)
    running = asyncio.create_task(Memberships(Coordinators(address), REGISTER, load, on_roster=on_roster).run())
    for _ in range(2):
        await script.next_report(lambda report: isinstance(report, Register))
    await script.next_report(lambda report: isinstance(report, Heartbeat))
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})
    await server.stop()
    (complaint,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert complaint.getMessage() == "not in the cluster, will retry: an unexpected error: a bug"
    assert complaint.exc_info


async def test_what_is_news_is_told_on_the_call_that_there_is_and_not_on_the_one_that_ended() -> None:
    script = Script(interval_ms=3_600_000)
    async with joined(script) as member:
        for _ in range(3):
            assert isinstance(await script.next_report(lambda report: isinstance(report, Register)), Register)
            await script.next_report(lambda report: isinstance(report, Heartbeat))
            script.directives.put_nowait(None)
        await script.next_report(lambda report: isinstance(report, Register))
        await script.next_report(lambda report: isinstance(report, Heartbeat))
        member.report_lost("drafter-2")
        heard = await script.next_report()
        assert isinstance(heard, Heartbeat) and heard.lost_drafters == ("drafter-2",)


async def test_a_loss_that_is_told_on_a_call_that_has_just_ended_is_told_on_the_next() -> None:
    script = Script(interval_ms=3_600_000)
    async with joined(script) as member:
        await script.next_report(lambda report: isinstance(report, Heartbeat))
        script.directives.put_nowait(None)
        member.report_lost("drafter-2")
        await script.next_report(lambda report: isinstance(report, Register))
        heard = await script.next_report()
        assert isinstance(heard, Heartbeat) and heard.lost_drafters == ("drafter-2",)
        member.report_lost("drafter-3")
        heard = await script.next_report()
        assert isinstance(heard, Heartbeat) and heard.lost_drafters == ("drafter-3",), "once a call"
