"""The empty handler: a server of grpc.aio that passes on what a verifier answers, message by message, and reads none of it.

`python -m benchmarks.edge.relay VERIFIER` writes its own address.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc

from benchmarks.edge.calls import DECODE
from specsplit.rpc.options import channel_options, server_options
from specsplit.settings import TransportSettings


async def _main(verifier: str) -> None:
    settings = TransportSettings()
    async with grpc.aio.insecure_channel(verifier, options=channel_options(settings)) as channel:
        decode = channel.unary_stream(DECODE)

        async def passed_on(request: bytes, context: object) -> AsyncIterator[bytes]:
            call = decode(request)
            try:
                async for message in call:
                    yield message
            finally:
                call.cancel()  # else it goes on being read when its caller has left

        service, _, method = DECODE[1:].rpartition("/")
        handlers = {method: grpc.unary_stream_rpc_method_handler(passed_on)}
        server = grpc.aio.server(options=server_options(settings))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"127.0.0.1:{port}", flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
