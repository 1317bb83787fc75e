"""A server that passes every call on as it came, and keeps what both sides said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from benchmarks.fire.fuzz.corpus import Conversation
from benchmarks.fire.fuzz.servers import serving

_PASSED_ON = frozenset({"authorization", "traceparent"})


class Relay(grpc.GenericRpcHandler):
    """Between callers and one server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.conversations: list[Conversation] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Every call may be streaming on both sides, as far as the wire goes."""
        method, metadata = str(handler_call_details.method), handler_call_details.invocation_metadata
        shown = [(key, value) for key, value in metadata if key in _PASSED_ON]
        return grpc.stream_stream_rpc_method_handler(partial(self._pass, method, shown))

    async def _pass(
        self, method: str, shown: list[tuple[str, str | bytes]], requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        said = Conversation(method)
        self.conversations.append(said)

        async def kept() -> AsyncIterator[bytes]:
            async for request in requests:
                said.requests.append(request)
                yield request

        call = self._channel.stream_stream(method)(kept(), metadata=shown)
        try:
            async for answer in call:
                said.answers.append(answer)
                yield answer
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
        finally:
            call.cancel()


@asynccontextmanager
async def relayed(target: str) -> AsyncIterator[tuple[str, Relay]]:
    """Serve a relay to `target` -> its address, and what it keeps."""
    async with grpc.aio.insecure_channel(target) as channel:
        relay = Relay(channel)
        async with serving(relay) as address:
            yield address, relay
