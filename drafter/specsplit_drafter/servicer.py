"""The gRPC edge of a drafter: parse, one call, serialise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import grpc

from specsplit.errors import SpecsplitError
from specsplit.rpc import number_of
from specsplit.sessions import Refuse
from specsplit.v1 import drafter_pb2_grpc as rpc
from specsplit.wire import drafter as wire
from specsplit_drafter.board import Answer
from specsplit_drafter.engine import Engine

if TYPE_CHECKING:
    from specsplit.v1 import drafter_pb2 as pb

_Events: TypeAlias = Sequence[tuple[int, Answer]]


class DrafterServicer(rpc.DrafterServiceServicer):
    """DrafterService over an engine."""

    engine: Engine
    """Set when the drafter is loaded; the server answers UNAVAILABLE until then."""

    async def GetDrafterInfo(  # noqa: N802
        self, request: pb.GetDrafterInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetDrafterInfoResponse:
        """What this drafter proposes with and what it fits."""
        return wire.drafter_info_to_wire(self.engine.info)

    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.DraftRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.DraftResponse]:
        """One verifier's stream: it ends, and its sessions with it, when the verifier closes its side or is gone."""
        loop = asyncio.get_running_loop()
        outbox: asyncio.Queue[_Events | None] = asyncio.Queue()
        stream = self.engine.open_stream(lambda events: _post(loop, outbox, events))
        reader = asyncio.create_task(self._read(stream, request_iterator, outbox))
        try:
            while (events := await outbox.get()) is not None:
                yield wire.draft_response((session, _as_event(event)) for session, event in events)
            await reader
        finally:
            reader.cancel()
            self.engine.close_stream(stream)

    async def _read(
        self, stream: int, requests: AsyncIterator[pb.DraftRequest], outbox: asyncio.Queue[_Events | None]
    ) -> None:
        try:
            async for request in requests:
                self.engine.receive(stream, wire.draft_request_events(request))
        finally:
            outbox.put_nowait(None)


def _post(loop: asyncio.AbstractEventLoop, outbox: asyncio.Queue[_Events | None], events: _Events) -> None:
    """From the engine's thread to the event loop's."""
    loop.call_soon_threadsafe(outbox.put_nowait, events)


def _as_event(answer: Answer) -> wire.ToVerifier:
    return Refuse(number_of(answer), str(answer)) if isinstance(answer, SpecsplitError) else answer
