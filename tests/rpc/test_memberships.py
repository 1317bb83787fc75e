"""One member and several coordinators, each of which says what the test tells it to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest

from specsplit.clock import SystemClock
from specsplit.errors import InvalidRequest
from specsplit.membership import CoordinatorDraining, Drain, Draining, Heartbeat, Register, Report, Roster, StartWave
from specsplit.ranks.lockstep import Lockstep
from specsplit.ranks.rank import Rank
from specsplit.rpc.coordinators import Coordinators, look_up
from specsplit.rpc.home import home_of
from specsplit.rpc.memberships import Memberships
from specsplit.rpc.standing import Sources, Standing
from specsplit.settings.addresses import Addresses
from specsplit.values import Endpoint, Load
from tests.support.meshes import mesh_of

from .test_member import REGISTER, Script, coordinating, make_coordinator

HERE = Roster((Endpoint("d1", "127.0.0.1:8"),))
THERE = Roster((Endpoint("d2", "127.0.0.1:9"),))


class Names:
    """Stands for a name server: says what the test has it say."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] | None = addresses
        self.asked = 0

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked += 1
        if self.addresses is None:
            raise OSError("the name server is away")
        return self.addresses


@asynccontextmanager
async def running(member: Memberships) -> AsyncIterator[Memberships]:
    task = asyncio.create_task(member.run())
    try:
        async with asyncio.timeout(30):
            yield member
    finally:
        task.cancel()
        await asyncio.wait({task})


def is_register(report: Report) -> bool:
    return isinstance(report, Register)


async def counted(script: Script, coordinators: int) -> Heartbeat:
    """The next heartbeat of a member that is joined to so many."""
    report = await script.next_report(lambda each: isinstance(each, Heartbeat) and each.coordinators == coordinators)
    assert isinstance(report, Heartbeat)
    return report


async def test_every_coordinator_of_a_list_is_joined_and_each_is_told_how_many_there_are() -> None:
    scripts = [Script(), Script()]
    async with (
        coordinating(scripts[0]) as first,
        coordinating(scripts[1]) as second,
        running(Memberships(Coordinators(f"{first},{second}"), REGISTER, lambda: Load(sessions=3))) as member,
    ):
        home = home_of(REGISTER.member_id, (first, second))
        for script, address in zip(scripts, (first, second), strict=True):
            assert await script.next_report() == REGISTER
            assert await counted(script, 2) == Heartbeat(Load(sessions=3), coordinators=2, home=address == home)
        assert member.joined


async def test_what_is_lost_and_that_it_drains_is_told_to_all_and_one_that_is_killed_takes_nobody_along() -> None:
    left, heard = Script(), asyncio.Queue[Roster]()
    server = make_coordinator(gone := Script())
    address = await server.start()
    server.ready()
    async with coordinating(left) as other:
        member = Memberships(Coordinators(f"{address},{other}"), REGISTER, Load, on_roster=heard.put_nowait)
        async with running(member):
            for script in (gone, left):
                await counted(script, 2)
            member.report_lost("d7")
            for script in (gone, left):
                await script.next_report(lambda each: isinstance(each, Heartbeat) and each.lost_drafters == ("d7",))
            gone.directives.put_nowait(HERE)
            assert await heard.get() == HERE
            left.directives.put_nowait(THERE)
            assert await heard.get() == Roster((*HERE.drafters, *THERE.drafters))
            await server.stop()
            assert await heard.get() == THERE
            await counted(left, 1)
            assert member.joined
            member.report_draining()
            assert await left.next_report(lambda each: isinstance(each, Draining)) == Draining()


async def test_addresses_that_a_name_gets_are_joined_and_those_that_it_loses_are_let_go_when_their_streams_end() -> (
    None
):
    scripts = [Script(), Script()]
    async with coordinating(scripts[0]) as first, coordinating(scripts[1]) as second:
        names = Names(first)
        coordinators = Coordinators("dns:///coordinators:1", look_up=names)
        async with running(Memberships(coordinators, REGISTER, Load, look_every_s=0.02)):
            await counted(scripts[0], 1)
            names.addresses = (second,)
            await counted(scripts[1], 2)
            await counted(scripts[0], 2)  # it may drain: nobody cuts it off
            scripts[0].directives.put_nowait(None)
            await counted(scripts[1], 1)
            names.addresses, asked = None, names.asked
            while names.asked < asked + 3:
                await asyncio.sleep(0.02)
            await counted(scripts[1], 1)
            names.addresses = (first, second)
            await scripts[0].next_report(is_register)
            await counted(scripts[1], 2)


async def test_a_coordinator_that_drains_is_counted_no_more_and_is_nobodys_home_unless_all_drain() -> None:
    scripts = [Script(), Script()]
    async with (
        coordinating(scripts[0]) as first,
        coordinating(scripts[1]) as second,
        running(Memberships(Coordinators(f"{first},{second}"), REGISTER, Load)) as member,
    ):
        for script in scripts:
            await counted(script, 2)
        scripts[0].directives.put_nowait(CoordinatorDraining())
        assert not (await counted(scripts[0], 1)).home
        assert (await counted(scripts[1], 1)).home
        scripts[1].directives.put_nowait(CoordinatorDraining())
        assert member.joined
        for script in scripts:
            await counted(script, 2)
        scripts[0].directives.put_nowait(None)
        await scripts[0].next_report(is_register)
        assert (await counted(scripts[0], 1)).home, "it is back"


async def test_a_rank_may_leave_once_every_coordinator_that_it_is_joined_to_knows_that_it_leaves() -> None:
    meshes = mesh_of(2)
    lockstep, _ = await asyncio.gather(*(asyncio.to_thread(Lockstep, mesh, SystemClock(), 7) for mesh in meshes))
    rank, waves = Rank(lockstep, SystemClock()), list[int]()
    scripts = [Script(), Script()]
    async with coordinating(scripts[0]) as first, coordinating(scripts[1]) as second:
        coordinators, drained = Coordinators(f"{first},{second}"), asyncio.Queue[None]()
        member = Memberships(
            coordinators,
            REGISTER,
            Load,
            rank=rank,
            on_start_wave=waves.append,
            on_drain=lambda: drained.put_nowait(None),
        )
        async with running(member):
            for script in scripts:
                await counted(script, 2)
            assert not rank.may_leave
            scripts[0].directives.put_nowait(Drain())
            await drained.get()
            assert member.dismissed and not rank.may_leave, "the other may still place sessions"
            scripts[1].directives.put_nowait(StartWave(1))
            scripts[1].directives.put_nowait(Drain())
            await drained.get()
            assert waves == [1] and not rank.may_leave, "a wave is to begin"
            await asyncio.to_thread(rank.start, 1)
        assert member.dismissed


def test_the_home_is_told_what_is_new_and_others_cost_two_reports_in_an_interval_however_many_they_are() -> None:
    made = count(1)
    clock = Ticking()
    standing = Standing(REGISTER, Sources(lambda: Load(sessions=next(made)), None, None, tuple), None, clock)
    standing.joined = [f"coordinator-{number}:1" for number in range(8)]
    told: list[Heartbeat] = []
    for number in range(80):  # in turn, each every second
        clock.time += 1 / 8
        told.append(standing.heartbeat((), 1.0, standing.joined[number % 8]))
    sessions = [report.load.sessions for report in told]
    assert sessions == sorted(sessions) and max(sessions) <= 30
    homes = {number % 8 for number, report in enumerate(told) if report.home}
    assert len(homes) == 1 and sum(report.home for report in told) == 10
    assert all(number == 0 or sessions[number] > sessions[number - 1] for number in range(80) if told[number].home)
    standing.joined = standing.joined[:1]
    alone = [standing.heartbeat((), 1.0, standing.joined[0]) for _ in range(2)]
    assert [report.load.sessions for report in alone] == [max(sessions) + 1, max(sessions) + 2], "of one each is new"
    assert all(report.home for report in alone)


class Ticking:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


async def test_a_name_that_cannot_be_looked_up_is_complained_of_once(caplog: pytest.LogCaptureFixture) -> None:
    names = Names()
    names.addresses = None
    coordinators = Coordinators("dns:///coordinators:1", look_up=names)
    assert [dict(await coordinators.look()) for _ in range(3)] == [{}, {}, {}]
    assert [record.getMessage() for record in caplog.records] == ["the name of the coordinators cannot be looked up"]


async def test_the_name_of_this_machine_is_looked_up() -> None:
    assert list(await look_up("127.0.0.1:7")) == ["127.0.0.1:7"]
    assert list(await look_up("[::1]:7")) == ["[::1]:7"]
    with pytest.raises(socket.gaierror):
        await look_up("no-such-host.invalid:7")


def test_addresses_are_a_list_and_names_of_which_every_address_counts() -> None:
    read = Addresses.read("coordinator", "a:1, dns:///b:2,[::1]:3")
    assert read == Addresses(("a:1", "[::1]:3"), ("b:2",))
    assert read.dialled == ("a:1", "[::1]:3", "b:2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:1,", "is '', expected host:port"),
        ("a:1,b", "is 'b', expected host:port"),
        ("a:1,a:1", "has 'a:1' twice; name each server once"),
        ("dns:a:1", "is 'dns:a:1', expected host:port"),
        ("dns:///a:0", "is 'a:0', which nobody can dial"),
    ],
)
def test_what_is_no_address_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Addresses.read("coordinator", text)
    assert str(caught.value).startswith(f"coordinator: {said}")
