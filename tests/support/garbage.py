"""A server whose answers are no messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

GARBAGE = b"\xff\xff\xff"


class Garbling(grpc.GenericRpcHandler):
    """Has every method, takes a request, and answers with bytes that are no message."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Every call may be streaming on both sides, as far as the wire goes."""

        async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            await anext(requests)
            yield GARBAGE

        return grpc.stream_stream_rpc_method_handler(answer)


@asynccontextmanager
async def garbling() -> AsyncIterator[str]:
    """Its address."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Garbling(),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)
