"""The gRPC edge of a verifier: parse, one call, serialise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from specsplit.errors import SpecsplitError
from specsplit.generation.contexts import at_end
from specsplit.rpc import Context
from specsplit.sessions import Tokens
from specsplit.stream_interval import Held
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import PromptLogprobs
from specsplit.wire import sessions as many
from specsplit.wire import verifier as wire
from specsplit.wire import weights
from specsplit.wire.watching import watch_from_wire, watch_response
from specsplit_verifier.edge.session_stream import SessionStream
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier

if TYPE_CHECKING:
    from specsplit.v1 import verifier_pb2


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """VerifierService over a Verifier."""

    verifier: Verifier
    """Set when the target is loaded; the server answers UNAVAILABLE until then."""

    def __init__(self, updates: Updates, refusal: Callable[[str], SpecsplitError | None]) -> None:
        """`refusal` says why a session that some method would begin is not taken now; None: it is."""
        self._updates = updates
        self._refusal = refusal
        self._streams: set[SessionStream] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def Decode(  # noqa: N802 (the name is the protocol's)
        self, request: verifier_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        """Decode one session."""
        info = self.verifier.info
        parsed = wire.decode_from_wire(request, info.vocabulary.size, info.max_context)
        held = Held[Tokens](parsed.stream_interval)
        try:
            async with aclosing(self.verifier.decode(parsed)) as events:
                async for event in events:
                    if isinstance(event, PromptLogprobs):  # nothing is held before the first tokens
                        yield wire.decode_response(event)
                    elif not (isinstance(event, Tokens) and held.holds((event,), len(event.tokens))):
                        yield wire.decode_response(event, held.release())
        except SpecsplitError:
            if earlier := held.release():
                yield wire.decode_response(earlier.pop(), earlier)
            raise

    async def DecodeSessions(  # noqa: N802
        self, request_iterator: AsyncIterator[verifier_pb2.DecodeSessionsRequest], context: Context
    ) -> AsyncIterator[verifier_pb2.DecodeSessionsResponse]:
        """Decode the sessions of one coordinator, until it closes its side or is gone, or the verifier has drained."""
        stream = SessionStream(self.verifier.sessions, partial(self._refusal, "Decode"))
        reader = asyncio.create_task(self._read(stream, request_iterator))
        self._streams.add(stream)
        self._idle.clear()
        at_end(context, partial(self._close, stream))
        try:
            async with aclosing(stream.answers()) as answers:
                async for together in answers:
                    for message in many.sessions_responses(together):
                        yield message
        finally:
            reader.cancel()
            self._close(stream)

    async def end_streams(self) -> None:
        """The verifier has drained: end all streams in order, and return once they are read."""
        for stream in self._streams:
            stream.finish()
        await self._idle.wait()

    async def _read(self, stream: SessionStream, requests: AsyncIterator[verifier_pb2.DecodeSessionsRequest]) -> None:
        info, failure = self.verifier.info, None
        try:
            async for request in requests:
                stream.receive(many.sessions_request_events(request, info.vocabulary.size, info.max_context))
        except Exception as error:  # noqa: BLE001 (the call ends with it)
            failure = error
        finally:
            stream.finish(failure)

    def _close(self, stream: SessionStream) -> None:
        stream.close()
        self._streams.discard(stream)
        if not self._streams:
            self._idle.set()

    async def Watch(  # noqa: N802
        self, request: verifier_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[verifier_pb2.WatchResponse]:
        """Watch one session."""
        async with aclosing(self.verifier.watch(watch_from_wire(request))) as events:
            async for event, missed in events:
                yield watch_response(event, missed)

    async def UpdateWeights(  # noqa: N802
        self, request: verifier_pb2.VerifierServiceUpdateWeightsRequest, context: Context
    ) -> verifier_pb2.VerifierServiceUpdateWeightsResponse:
        """Have the target go on with other weights. An operator's call."""
        wanted = weights.verifier_update_from_wire(request)
        return weights.verifier_updated_to_wire(await self._updates.update(self.verifier, wanted))
