"""Requests to a group of two verifiers through a real coordinator; only their mesh is one of threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specsplit.clock import Clock
from specsplit.membership import GroupRank, Member
from specsplit.ranks.environment import RankEnvironment
from specsplit.ranks.lockstep import Lockstep
from specsplit.rpc import Service
from specsplit.settings import VerifierSettings
from specsplit_verifier.edge import service as verifier_service
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.target.runner import TargetRunner
from tests.support.meshes import ThreadMesh, mesh_of
from tests.support.toys import alphabet_target

if TYPE_CHECKING:
    from .conftest import Cluster, StartCluster

WAIT_S = 30.0


class Group:
    """Two ranks that serve, and the coordinator that they have joined."""

    def __init__(self, cluster: Cluster, services: Sequence[Service[Any]], meshes: Sequence[ThreadMesh]) -> None:
        self.cluster = cluster
        self.meshes = meshes
        self.services = services
        self.serving = [asyncio.create_task(each.serve(signals=False)) for each in services]

    async def parked(self) -> tuple[Member, ...]:
        """All ranks, once they are there and parked."""
        async with asyncio.timeout(WAIT_S):
            while True:
                members = (await self.cluster.client.cluster()).members
                if len(members) == 2 and all(member.wave is not None and member.wave.parked for member in members):
                    return members
                await asyncio.sleep(0.01)

    async def status(self, *ranks: int) -> list[int]:
        """What these ranks leave with."""
        async with asyncio.timeout(WAIT_S):
            return await asyncio.gather(*(self.serving[rank] for rank in ranks))


StartGroup = Callable[[int], Awaitable[Group]]


@pytest.fixture
async def start_group(
    start_cluster: StartCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StartGroup]:
    """Starts a coordinator, and a group that so many agents have started."""
    folder, meshes, started = alphabet_target(tmp_path), mesh_of(2), list[Group]()

    def load_rank(settings: VerifierSettings, clock: Clock, rank: int, *, lazily: bool) -> TargetRunner:
        runner = load_target(settings, clock, lazily=lazily)
        runner.lockstep = Lockstep(meshes[rank], clock, drawn=0xABC)
        return runner

    async def start(agents: int) -> Group:
        cluster = await start_cluster(model=folder)
        shared = {"model": folder, "coordinator": cluster.address, "adaptive": "static"}
        services = [
            verifier_service.service_of(
                VerifierSettings.load(**shared, member_id=f"rank-{rank}"), RankEnvironment(rank, rank, 2, agents)
            )
            for rank in range(2)
        ]
        await asyncio.gather(*(each.start() for each in services))
        started.append(Group(cluster, services, meshes))
        return started[0]

    monkeypatch.setattr(verifier_service, "load_target", load_rank)
    yield start
    for group in started:
        for service in group.services:
            service.leave()
        await group.status(0, 1)


async def test_requests_wake_a_group_that_parks_between_them_and_leaves_as_one(start_group: StartGroup) -> None:
    group = await start_group(1)
    members, client = await group.parked(), group.cluster.client
    assert {member.group for member in members} == {GroupRank("abc", rank, 2) for rank in range(2)}
    for wave in range(1, 4):
        texts = await asyncio.gather(*(client.generate("abc", max_tokens=4) for _ in range(4)))
        assert {result.text for result in texts} == {"defg"}
        numbers = {member.wave.number for member in await group.parked() if member.wave is not None}
        assert len(numbers) == 1 and numbers.pop() >= wave
    before = [mesh.exchanges for mesh in group.meshes]
    await asyncio.sleep(0.2)
    assert [mesh.exchanges for mesh in group.meshes] == before, "a parked group exchanges nothing"
    group.services[0].leave()
    assert await group.status(0, 1) == [0, 0], "all of them leave, and for good"


async def test_of_several_agents_those_that_nobody_told_to_stop_start_their_ranks_again(
    start_group: StartGroup,
) -> None:
    group = await start_group(2)
    await group.parked()
    group.services[0].leave()
    assert await group.status(0, 1) == [1, 1]


async def test_a_rank_that_leaves_while_the_coordinator_is_away_leaves_at_once_and_is_started_again_with_the_others(
    start_group: StartGroup,
) -> None:
    group = await start_group(1)
    await group.parked()
    await group.cluster.coordinator.stop()
    for rank, service in enumerate(group.services):  # its agent tells the other one, since the first has left with 1
        service.leave()
        assert await group.status(rank) == [1]
