"""The gRPC edge of a verifier: parse, one call, serialise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from specsplit.errors import SpecsplitError
from specsplit.rpc import Context
from specsplit.sessions import Tokens
from specsplit.stream_interval import Held
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import PromptLogprobs
from specsplit.wire import verifier as wire
from specsplit.wire import weights
from specsplit.wire.watching import watch_from_wire, watch_response
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier

if TYPE_CHECKING:
    from specsplit.v1 import verifier_pb2


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """VerifierService over a Verifier."""

    verifier: Verifier
    """Set when the target is loaded; the server answers UNAVAILABLE until then."""

    def __init__(self, updates: Updates) -> None:
        self._updates = updates

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
                    elif not (isinstance(event, Tokens) and held.holds(event, len(event.tokens))):
                        yield wire.decode_response(event, held.release())
        except SpecsplitError:
            if earlier := held.release():
                yield wire.decode_response(earlier.pop(), earlier)
            raise

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
