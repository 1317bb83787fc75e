"""A caller that leaves while it is being written to, over a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from specsplit.rpc import Context, dial
from specsplit.rpc.departures import Departures
from specsplit.v1 import coordinator_pb2 as pb
from specsplit.v1 import coordinator_pb2_grpc
from tests.rpc.toy import Toy, make_server

LOUD = pb.GenerateResponse(delta=pb.DeltaEvent(text="x" * 100_000))


class Loud(Toy):
    """Streams more than fits between it and a caller that does not read, and counts."""

    written = 0

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        while True:
            yield LOUD
            self.written += 1


async def leave_while_written_to(address: str, loud: Loud) -> None:
    """Call, read nothing more once something has come, and leave when nothing more fits."""
    async with dial(address) as channel:
        call = coordinator_pb2_grpc.CoordinatorServiceStub(channel).Generate(pb.GenerateRequest(text="x"))
        await anext(aiter(call))
        before = -1
        while before != loud.written:
            before = loud.written
            await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.sleep(0.1)


async def test_a_caller_that_leaves_while_it_is_written_to_is_a_line_and_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "specsplit.rpc.departures")
    server, loud = make_server(), Loud()
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(loud, server.grpc)
    address = await server.start()
    server.ready()
    line = "a message did not reach its caller, who left or takes none so large: [/specsplit.v1.CoordinatorService/Generate]"
    try:
        async with asyncio.timeout(60):
            while line not in caplog.text:  # on a busy machine it may have been between two messages
                await leave_while_written_to(address, loud)
    finally:
        await server.stop()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_what_else_the_transport_logs_passes() -> None:
    other = logging.LogRecord("grpc", logging.ERROR, "", 0, "Unexpected [%s] raised by servicer method", ("x",), None)
    assert Departures().filter(other)
