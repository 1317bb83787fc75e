"""A real drafter on a real port, and the end of the stream that a verifier holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc

from specsplit.draft_events import Refuse, ToDrafter, ToVerifier
from specsplit.errors import InvalidRequest
from specsplit.rpc import Server, dial, wait_until_serving
from specsplit.settings import DrafterSettings
from specsplit.speculation import Grow
from specsplit.v1 import drafter_pb2, drafter_pb2_grpc
from specsplit.values import DrafterKind
from specsplit.wire import drafter as wire
from specsplit_drafter.edge.service import service_of

NGRAM = DrafterSettings(kind=DrafterKind.NGRAM)
WAIT_S = 20.0


class Stream:
    """One Draft stream as a verifier holds it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._requests: asyncio.Queue[drafter_pb2.DraftRequest | None] = asyncio.Queue()
        self.call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft(self._sent())
        self._arrived: list[tuple[int, ToVerifier]] = []
        self.messages = 0

    async def _sent(self) -> AsyncIterator[drafter_pb2.DraftRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    def send(self, *events: tuple[int, ToDrafter]) -> None:
        """One message."""
        self.send_raw(wire.draft_request(events))

    def send_raw(self, request: drafter_pb2.DraftRequest) -> None:
        """One message, whatever is in it."""
        self._requests.put_nowait(request)

    async def next_of(self, session: int) -> ToVerifier:
        """The next event of a session."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for i, (owner, event) in enumerate(self._arrived):
                    if owner == session:
                        del self._arrived[i]
                        return event
                response = await self.call.read()
                assert isinstance(response, drafter_pb2.DraftResponse), "the stream is over"
                self.messages += 1
                for owner, event in wire.draft_response_events(response):
                    assert not isinstance(event, InvalidRequest)
                    self._arrived.append((owner, event))

    async def grown(self, session: int) -> Grow:
        """Everything that a session grows until it rests, as one."""
        grows: list[Grow] = []
        while not grows or not grows[-1].resting:
            event = await self.next_of(session)
            assert isinstance(event, Grow), event
            grows.append(event)
        return Grow.merge(grows)

    async def refused(self, session: int) -> Refuse:
        """The refusal of a session; grows before it are let pass."""
        while not isinstance(event := await self.next_of(session), Refuse):
            pass
        return event

    async def close(self) -> None:
        """Close our side, and wait for the other."""
        self._requests.put_nowait(None)
        async with asyncio.timeout(WAIT_S):
            while await self.call.read():
                pass

    def break_off(self) -> None:
        """Be gone."""
        self.call.cancel()


@asynccontextmanager
async def drafter(
    settings: DrafterSettings = NGRAM,
) -> AsyncIterator[tuple[Server, grpc.aio.Channel, asyncio.Task[int]]]:
    """A drafter that serves, and a channel to it."""
    service = service_of(settings)
    await service.start()
    server, task = service.server, asyncio.create_task(service.serve(signals=False))
    try:
        async with dial(server.bound) as channel:
            await wait_until_serving(channel, WAIT_S)
            yield server, channel, task
    finally:
        server.leave()
        server.leave()
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait({task})


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once it is so."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.01)
