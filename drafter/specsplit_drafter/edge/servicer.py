"""The gRPC edge of a drafter: parse, one call, serialise; and the engine's hand-over to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import grpc

from specsplit.draft_events import Refuse
from specsplit.errors import SpecsplitError
from specsplit.rpc import number_of, sentence_of
from specsplit.v1 import drafter_pb2_grpc as rpc
from specsplit.wire import drafter as wire
from specsplit.wire import weights
from specsplit.wire.packing import packed
from specsplit_drafter.drafts.record import Cycle
from specsplit_drafter.edge.telemetry import Telemetry
from specsplit_drafter.edge.updates import Updates
from specsplit_drafter.engine.engine import Engine
from specsplit_drafter.engine.session_table import Answer, Outgoing

if TYPE_CHECKING:
    from specsplit.v1 import drafter_pb2 as pb

_Events: TypeAlias = Sequence[tuple[int, Answer]]
_Queue: TypeAlias = "asyncio.Queue[_Events | None]"


class DrafterServicer(rpc.DrafterServiceServicer):
    """DrafterService over an engine, whose outbox it is. To be made on the event loop."""

    engine: Engine
    """Set when the drafter is loaded; the server answers UNAVAILABLE until then."""

    def __init__(self, telemetry: Telemetry, most_bytes: int, updates: Updates) -> None:
        """`most_bytes` is what the transport lets through."""
        self._telemetry = telemetry
        self._most_bytes = most_bytes
        self._updates = updates
        self._loop = asyncio.get_running_loop()
        self._queues: dict[int, _Queue] = {}
        """Messages that wait to be sent, by stream; None ends it."""
        self._drained = False

    async def GetDrafterInfo(  # noqa: N802
        self, request: pb.GetDrafterInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetDrafterInfoResponse:
        """Answer with what this drafter proposes with and what it fits."""
        return wire.drafter_info_to_wire(self.engine.info)

    async def UpdateWeights(  # noqa: N802
        self, request: pb.DrafterServiceUpdateWeightsRequest, context: grpc.aio.ServicerContext
    ) -> pb.DrafterServiceUpdateWeightsResponse:
        """Have the drafter go on with other weights. An operator's call."""
        wanted = weights.drafter_update_from_wire(request)
        return weights.drafter_updated_to_wire(await self._updates.update(self.engine, wanted))

    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.DraftRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.DraftResponse]:
        """Serve one verifier's stream. It and its sessions end when the verifier closes its side or is gone.

        When the drafter is drained the stream ends with status OK.
        """
        stream = self.engine.open_stream()
        answers = self._queues[stream] = asyncio.Queue()
        reader = asyncio.create_task(self._read(stream, request_iterator, answers))
        try:
            while (events := await answers.get()) is not None:
                answered = [(session, self._as_event(event)) for session, event in events]
                for message in packed(answered, self._most_bytes):
                    yield wire.draft_response(message)
            if not self._drained:
                await reader
        finally:
            reader.cancel()
            del self._queues[stream]
            self.engine.close_stream(stream)

    def end_streams(self) -> None:
        """End all streams in order: the drafter is drained."""
        self._drained = True
        for answers in self._queues.values():
            answers.put_nowait(None)

    def deliver(self, outgoing: Outgoing, cycle: Cycle | None) -> None:
        """Hand over to the event loop, in one hop whatever the number of streams."""
        self._loop.call_soon_threadsafe(self._hand_out, outgoing, cycle)

    async def _read(self, stream: int, requests: AsyncIterator[pb.DraftRequest], answers: _Queue) -> None:
        try:
            async for request in requests:
                self.engine.receive(stream, wire.draft_request_events(request))
        finally:
            answers.put_nowait(None)

    def _hand_out(self, outgoing: Outgoing, cycle: Cycle | None) -> None:
        for stream, events in outgoing.items():  # first: it is what a verifier may wait for
            answers = self._queues.get(stream)
            if answers is not None:
                answers.put_nowait(events)
        if cycle is not None:
            self._telemetry.record(cycle)

    def _as_event(self, answer: Answer) -> wire.ToVerifier:
        if not isinstance(answer, SpecsplitError):
            return answer
        self._telemetry.refused(answer)
        return Refuse(number_of(answer), sentence_of(answer))
