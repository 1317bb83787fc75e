"""A server whose answers are no messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

GARBAGE = b"\xff\xff\xff"


class Garbling(grpc.GenericRpcHandler):
    """Has every method, takes a request, and answers with bytes that are no message, or ends the call with a code."""

    def __init__(self, code: grpc.StatusCode | None, details: bytes) -> None:
        self._code = code
        self._details = details

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Every call may be streaming on both sides, as far as the wire goes."""

        async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            await anext(requests)
            if self._code is not None:
                await context.abort(self._code, "no", (("grpc-status-details-bin", self._details),))
            yield GARBAGE

        return grpc.stream_stream_rpc_method_handler(answer)


@asynccontextmanager
async def garbling(code: grpc.StatusCode | None = None, details: bytes = GARBAGE) -> AsyncIterator[str]:
    """The address of one whose calls end with `code`, and with these bytes as details; None: it answers."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Garbling(code, details),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)
