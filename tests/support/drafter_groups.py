"""A drafter group of each kind that has a model, in this process: services over a mesh of threads, in the cluster of a real coordinator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from specsplit.cli.folders import drafts_beside
from specsplit.generation.preparation import RandomSources
from specsplit.model.heads import Head, load_head
from specsplit.model.layers.sharded import TensorMesh
from specsplit.ranks.environment import RankEnvironment
from specsplit.ranks.lockstep import Agreed, Proposal
from specsplit.rpc import Service
from specsplit.settings import CoordinatorSettings, DrafterSettings
from specsplit.values import DrafterKind, Endpoint
from specsplit_coordinator.edge.service import Coordinator
from specsplit_coordinator.members.member_state import endpoint_of
from specsplit_coordinator.members.registry import Registry
from specsplit_drafter.edge.service import Drafter, service_of
from tests.support.drafting import POCKET
from tests.support.eventually import eventually
from tests.support.meshes import ThreadMesh, mesh_of

SIZE: Final = 2
ONE_AT_A_TIME: Final = threading.Lock()
"""While a head is loaded its precision is that of the whole process."""


@dataclass
class DrafterGroup:
    """One group, which a coordinator wakes when a rank has a session."""

    kind: DrafterKind
    endpoints: list[Endpoint]
    """By rank."""
    meshes: list[ThreadMesh]
    registry: Registry

    @property
    def parked(self) -> bool:
        """True if each of its ranks says so."""
        own = {endpoint.address for endpoint in self.endpoints}
        waves = [member.wave for member in self.registry.drafters if member.who.address in own]
        return len(waves) == SIZE and all(wave is not None and wave.parked for wave in waves)

    @property
    def turns(self) -> list[Agreed]:
        """All that its ranks had together so far."""
        _, *told = self.meshes[0].told
        return [Agreed(0, [Proposal.of(numbers) for numbers in each]) for each in told]


@asynccontextmanager
async def pocket_drafter_groups() -> AsyncIterator[list[DrafterGroup]]:
    """All of them are left in the end, by telling one rank of each."""
    settings = CoordinatorSettings(model=POCKET, listen="127.0.0.1:0", heartbeat_ms=100, lost_after_ms=60_000)
    coordinator = Coordinator(settings, RandomSources(lambda: 1, lambda: "drawn"))
    async with AsyncExitStack() as stack:
        address = await coordinator.service.start()
        stack.push_async_callback(coordinator.stop)
        groups = [
            await _joined(stack, kind, address, coordinator.registry)
            for kind in drafts_beside(POCKET)
            if not kind.drafts_blocks
        ]
        yield groups
        await eventually(lambda: all(group.parked for group in groups))


async def _joined(stack: AsyncExitStack, kind: DrafterKind, address: str, registry: Registry) -> DrafterGroup:
    meshes, target = mesh_of(SIZE), POCKET if kind.is_head else None
    settings = DrafterSettings(
        kind=kind, model=drafts_beside(POCKET)[kind], target=target, dp_size=SIZE, coordinator=address
    )
    services = [
        service_of(settings.model_copy(update={"member_id": f"{kind.value}-{rank}"}), RankEnvironment(rank, rank, SIZE))
        for rank in range(SIZE)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specsplit.model.ranks.mesh.TorchMesh", lambda rank, *_, **__: meshes[rank])
        patch.setattr("specsplit.model.heads.load_head", _head)
        await asyncio.gather(*(service.start() for service in services))
    serving = [asyncio.create_task(service.serve(signals=False)) for service in services]
    stack.push_async_callback(_left, services, serving)
    names = [service.server.address for service in services]
    await eventually(lambda: {member.who.address for member in registry.drafters} >= set(names))
    members = {member.who.address: member for member in registry.drafters}
    return DrafterGroup(kind, [endpoint_of(members[name]) for name in names], meshes, registry)


def _head(folder: Path, target: Path, kind: DrafterKind, *, mesh: TensorMesh | None, **options: Any) -> Head:
    with ONE_AT_A_TIME:  # and whole, since it runs as it is loaded
        head = load_head(folder, target, kind, **options)
    if mesh is not None:
        head.shard(mesh)
    return head


async def _left(services: Sequence[Service[Drafter]], serving: Sequence[asyncio.Task[int]]) -> None:
    services[0].leave()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*serving) == [0] * SIZE
