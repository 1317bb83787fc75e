"""Requests to a group of two verifiers through a real coordinator; only their mesh is one of threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specsplit.clock import Clock
from specsplit.membership import GroupRank, Member
from specsplit.ranks.lockstep import Lockstep
from specsplit.rpc import Service
from specsplit.settings import VerifierSettings
from specsplit_verifier import service as verifier_service
from specsplit_verifier.service import load_target
from specsplit_verifier.target_runner import TargetRunner
from specsplit_verifier.verifier import Verifier
from tests.support.meshes import mesh_of
from tests.support.toys import alphabet_target

if TYPE_CHECKING:
    from .conftest import Cluster, StartCluster

WAIT_S = 30.0


@asynccontextmanager
async def serving(services: Sequence[Service[Verifier]]) -> AsyncIterator[None]:
    """Started together; in the end one is told to leave, and the whole group does."""
    await asyncio.gather(*(each.start() for each in services))
    tasks = [asyncio.create_task(each.serve(signals=False)) for each in services]
    try:
        yield
    finally:
        services[0].server.leave()
        async with asyncio.timeout(WAIT_S):
            assert await asyncio.gather(*tasks) == [0] * len(tasks)


async def ranks_of(cluster: Cluster) -> tuple[Member, ...]:
    """All ranks of the group, once they are there and it is parked."""
    async with asyncio.timeout(WAIT_S):
        while True:
            members = (await cluster.client.cluster()).members
            if len(members) == 2 and all(member.wave is not None and member.wave.parked for member in members):
                return members
            await asyncio.sleep(0.01)


async def test_requests_wake_a_group_that_parks_between_them(
    start_cluster: StartCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, meshes = alphabet_target(tmp_path), mesh_of(2)

    def load_rank(settings: VerifierSettings, clock: Clock, rank: int) -> TargetRunner:
        runner = load_target(settings, clock)
        runner.lockstep = Lockstep(meshes[rank], clock, drawn=0xABC)
        return runner

    monkeypatch.setattr(verifier_service, "load_target", load_rank)
    cluster = await start_cluster(model=folder)
    settings = [
        VerifierSettings.load(model=folder, coordinator=cluster.address, member_id=f"rank-{rank}", adaptive="static")
        for rank in range(2)
    ]
    async with serving([verifier_service.service_of(each, rank) for rank, each in enumerate(settings)]):
        members = await ranks_of(cluster)
        assert {member.group for member in members} == {GroupRank("abc", rank, 2) for rank in range(2)}
        for wave in range(1, 4):
            texts = await asyncio.gather(*(cluster.client.generate("abc", max_tokens=4) for _ in range(4)))
            assert {result.text for result in texts} == {"defg"}
            numbers = {member.wave.number for member in await ranks_of(cluster) if member.wave is not None}
            assert len(numbers) == 1 and numbers.pop() >= wave
        before = [mesh.exchanges for mesh in meshes]
        await asyncio.sleep(0.2)
        assert [mesh.exchanges for mesh in meshes] == before, "a parked group exchanges nothing"
