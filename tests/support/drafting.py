"""Drafters of every kind for the pocket target, in this process, on ports of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import Child
from specsplit.membership import Register
from specsplit.rpc import dial, wait_until_serving
from specsplit.settings import DrafterSettings
from specsplit.v1 import drafter_pb2_grpc
from specsplit.values import DrafterInfo, DrafterKind, Endpoint
from specsplit.wire import drafter as wire
from tests.drafter.service_toys import drafter

POCKET = Path("models/pocket/target")
NODE_US = 300


@asynccontextmanager
async def drafter_process(kind: str, **options: object) -> AsyncIterator[Endpoint]:
    """A drafter that reads no features, in a process of its own, once it serves."""
    child = Child(kind, "drafter", {"kind": kind, **options}, None)
    try:
        address = await asyncio.to_thread(child.wait_listening, 60)
        async with dial(address) as channel:
            await wait_until_serving(channel, 60)
        yield Endpoint(child.name, address)
    finally:
        child.kill()


POCKET_KINDS = [kind for kind in DrafterKind if not kind.needs_model or kind in drafts_beside(POCKET)]
"""Kinds that need no model, or of which there is one beside the pocket target."""


@asynccontextmanager
async def pocket_drafters(*kinds: DrafterKind) -> AsyncIterator[dict[DrafterKind, Register]]:
    """One of each of some kinds, by default of all that there are for the pocket target, as it would join a cluster."""
    async with AsyncExitStack() as stack:
        yield {kind: await _started(stack, kind) for kind in kinds or POCKET_KINDS}


async def _started(stack: AsyncExitStack, kind: DrafterKind) -> Register:
    model, target = drafts_beside(POCKET).get(kind), POCKET if kind.is_head else None
    server, channel, _ = await stack.enter_async_context(
        drafter(DrafterSettings(kind=kind, model=model, target=target))
    )
    told = await drafter_pb2_grpc.DrafterServiceStub(channel).GetDrafterInfo(wire.drafter_info_request())
    return Register(kind.value, server.bound, wire.drafter_info_from_wire(told), 64)


def endpoint_of(drafter: Register) -> Endpoint:
    """Where it is, and what it reads."""
    assert isinstance(drafter.role, DrafterInfo)
    return Endpoint(drafter.member_id, drafter.address, drafter.role.features)
