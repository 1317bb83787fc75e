"""A server of this process, for those who play one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

UNBOUNDED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
"""A hostile party keeps to no limit of its own."""


@asynccontextmanager
async def serving(handler: grpc.GenericRpcHandler) -> AsyncIterator[str]:
    """host:port of a server with this handler. At the end its calls are cut off."""
    server = grpc.aio.server(options=UNBOUNDED)
    server.add_generic_rpc_handlers((handler,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)
