"""A real coordinator over real gRPC, in this process, and verifiers that say what a test tells them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from specsplit.client import AsyncClient
from specsplit.features import FeatureNeed
from specsplit.generation.preparation import RandomSources
from specsplit.membership import GroupRank, Register, Role
from specsplit.rpc.coordinators import Coordinators
from specsplit.rpc.edge import Edge
from specsplit.rpc.memberships import Memberships
from specsplit.rpc.options import server_options
from specsplit.sessions import Begin, DecodeEvent, DecodeRequest, Finished, Tokens
from specsplit.settings import CoordinatorSettings, TransportSettings
from specsplit.text.tokenizer import Tokenizer
from specsplit.v1 import verifier_pb2, verifier_pb2_grpc
from specsplit.values import (
    DrafterInfo,
    DrafterKind,
    FinishReason,
    Load,
    ModelInfo,
    SpeculationReport,
    SpeculationStatistics,
    Usage,
)
from specsplit.wire.verifier import decode_from_wire, decode_response
from specsplit.wire.watching import Watched, watch_response
from specsplit_coordinator.edge.service import Coordinator
from tests.support.carrying import Carrying

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
CONTEXT = 512

Script = Callable[[DecodeRequest], AsyncIterator[DecodeEvent]]


@dataclass
class Verifier(Carrying):
    """Answers Decode and DecodeSessions with its script, and counts."""

    script: Script
    address: str = ""
    asked: list[DecodeRequest] = field(default_factory=list[DecodeRequest])
    timeouts: list[float | None] = field(default_factory=list[float | None])
    traceparents: list[str] = field(default_factory=list[str])
    """What each call said of its trace; empty: nothing."""
    open: int = 0
    calls: int = 0
    """Sessions that had a call of their own."""
    watched: Sequence[tuple[Watched, int]] = ()
    """What Watch tells of every request, and how many events it left out before each; then it waits until `ended`."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def Decode(  # noqa: N802 (the name is the protocol's)
        self, request: verifier_pb2.DecodeRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        self.calls += 1
        self.asked.append(decode_from_wire(request, 2048))
        self.timeouts.append(context.time_remaining())
        headers = {key: str(value) for key, value in context.invocation_metadata() or ()}
        self.traceparents.append(headers.get("traceparent", ""))
        self.open += 1
        try:
            async for event in self.script(self.asked[-1]):
                yield decode_response(event)
        finally:
            self.open -= 1

    async def carried(self, begin: Begin) -> AsyncIterator[DecodeEvent]:
        self.asked.append(begin.request)
        self.timeouts.append(begin.timeout_s)
        self.traceparents.append(begin.traceparent)
        self.open += 1
        try:
            async for event in self.script(begin.request):
                yield event
        finally:
            self.open -= 1

    async def Watch(  # noqa: N802
        self, request: verifier_pb2.WatchRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[verifier_pb2.WatchResponse]:
        if not any(each.request_id == request.request_id for each in self.asked):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no session of request {request.request_id!r} is here")
        for event, missed in self.watched:
            yield watch_response(event, missed)
        await self.ended.wait()


@dataclass
class Cluster:
    """What a test gets to work with."""

    coordinator: Coordinator
    address: str
    client: AsyncClient
    tokenizer: Tokenizer
    stack: AsyncExitStack
    joined: dict[str, tuple[Memberships, asyncio.Task[None]]] = field(
        default_factory=dict[str, tuple[Memberships, asyncio.Task[None]]]
    )
    """Every member's own side of Join, by name; it leaves when the task is cancelled."""

    async def add_verifier(
        self,
        script: Script,
        name: str = "v1",
        max_sessions: int = 4,
        load: Callable[[], Load] = Load,
        group: GroupRank | None = None,
        speculation: Callable[[], SpeculationReport] | None = None,
    ) -> Verifier:
        """Start a verifier and let it join."""
        verifier = await self.serve_verifier(script)
        model = ModelInfo("toy", self.tokenizer.vocabulary, CONTEXT, (0,))
        await self.join(name, verifier.address, model, max_sessions, load, group, speculation)
        return verifier

    async def serve_verifier(self, script: Script) -> Verifier:
        """Start a verifier that has not joined."""
        verifier = Verifier(script)
        options = server_options(TransportSettings())
        server = grpc.aio.server(interceptors=[Edge("verifier", lambda method: None)], options=options)
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(verifier, server)
        verifier.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self.stack.push_async_callback(server.stop, None)
        return verifier

    async def add_drafter(self, kind: DrafterKind, name: str, wanted: FeatureNeed | None = None) -> None:
        """Let a drafter join (nobody dials it here)."""
        info = DrafterInfo(kind, "", None, CONTEXT, wanted or FeatureNeed())
        await self.join(name, "127.0.0.1:9", info)

    async def join(
        self,
        name: str,
        address: str,
        role: Role,
        max_sessions: int = 4,
        load: Callable[[], Load] = Load,
        group: GroupRank | None = None,
        speculation: Callable[[], SpeculationReport] | None = None,
        dialled: Coordinators | None = None,
    ) -> asyncio.Task[None]:
        """A member that reports until the test ends, or until the task is cancelled. `dialled`: other coordinators than this one."""
        dialled = dialled or Coordinators(self.coordinator.service.server.members_bound)
        registers = Register(name, address, role, max_sessions, group=group)
        membership = Memberships(dialled, registers, load, speculation=speculation)
        task = asyncio.create_task(membership.run())
        self.joined[name] = membership, task

        async def leave() -> None:
            task.cancel()
            await asyncio.wait({task})

        self.stack.push_async_callback(leave)
        await asyncio.wait_for(membership.wait_joined(), 5)
        return task

    def tokens(self, text: str) -> tuple[int, ...]:
        return self.tokenizer.encode(text)


StartCluster = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def start_cluster() -> AsyncGenerator[StartCluster, None]:
    """Starts coordinators with given settings."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Cluster:
            values: dict[str, Any] = {
                "listen": "127.0.0.1:0",
                "model": POCKET,
                "heartbeat_ms": 50,
                "lost_after_ms": 3000,
            } | settings
            coordinator = Coordinator(
                CoordinatorSettings(**values), RandomSources(seed=lambda: 77, request_id=lambda: "drawn")
            )
            address = await coordinator.service.start()
            stack.push_async_callback(coordinator.stop)
            client = await stack.enter_async_context(AsyncClient(address))
            return Cluster(coordinator, address, client, Tokenizer.load(POCKET), stack)

        yield start


@pytest.fixture
async def cluster(start_cluster: StartCluster) -> Cluster:
    """A coordinator with nobody in its cluster."""
    return await start_cluster()


CACHED = 1
"""Tokens of every prompt that a scripted verifier says it had already."""


def after(steps: int, accepted: int = 0) -> SpeculationStatistics:
    return SpeculationStatistics(steps=steps, drafted=4 * steps, accepted=accepted, hits=1, misses=steps - 1)


@pytest.fixture
def say() -> Callable[..., Script]:
    """Makes a script: one step per list of tokens, then the end."""

    def make(
        *steps: tuple[int, ...] | list[int],
        reason: FinishReason = FinishReason.STOP,
        stop_token: int | None = 0,
        then_wait: bool = False,
    ) -> Script:
        async def script(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
            total = 0
            for number, tokens in enumerate(steps, 1):
                total += len(tokens)
                yield Tokens(tokens, len(tokens) - 1, after(number, total - number), cached_prompt_tokens=CACHED)
            if then_wait:
                await asyncio.Event().wait()
            usage = Usage(len(request.tokens), total, CACHED)
            yield Finished(reason, stop_token, usage, after(len(steps), total - len(steps)))

        return script

    return make
