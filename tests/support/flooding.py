"""Drafters that send as much as the wire takes, in this process, or in one of their own: `python -m tests.support.flooding KIND`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import grpc

from specsplit.draft_events import FeaturesRead
from specsplit.rpc import DRAFTER_SERVICE
from specsplit.speculation import Grow
from specsplit.v1 import drafter_pb2
from specsplit.values import Endpoint
from specsplit.wire.drafter import draft_response
from specsplit.wire.limits import MAX_EVENTS, MAX_NODES

NEVER_OPENED = 2**40


def unknown(session: int) -> bytes:
    """Grows of sessions that nobody ever opened."""
    return draft_response([(NEVER_OPENED + i, Grow(0, resting=True)) for i in range(MAX_EVENTS)]).SerializeToString()


def known(session: int) -> bytes:
    """Grows of the session that was opened, each of them allowed."""
    return draft_response([(session, Grow(0, resting=True))] * MAX_EVENTS).SerializeToString()


def huge(session: int) -> bytes:
    """A million nodes for the session that was opened."""
    ids = range(1, MAX_NODES + 1)
    grow = Grow(0, ids, [node - 1 for node in ids], [98] * MAX_NODES, [-0.1] * MAX_NODES)
    return draft_response([(session, grow)]).SerializeToString() * 16


def large(session: int) -> bytes:
    """Far more nodes for the session that was opened than were asked for, in one grow."""
    ids = range(1, 3 * 4096 + 1)
    grow = Grow(0, ids, [0] * len(ids), range(len(ids)), [-0.1] * len(ids))
    return draft_response([(session, grow)]).SerializeToString()


def small(session: int) -> bytes:
    """One event in a message, which is the dearest way to send it."""
    return draft_response([(session, Grow(0, resting=True))]).SerializeToString()


def padded(session: int) -> bytes:
    """One event, and 15 MiB that no field of this version names."""
    padding = 15 * 2**20
    length = bytes([padding & 127 | 128, padding >> 7 & 127 | 128, padding >> 14 & 127 | 128, padding >> 21])
    return small(session) + b"\xfa\x7f" + length + bytes(padding)


def read(session: int) -> bytes:
    """Features that were never sent are said to be read."""
    return draft_response([(session, FeaturesRead(0))] * MAX_EVENTS).SerializeToString()


KINDS: Mapping[str, Callable[[int], bytes]] = MappingProxyType(
    {each.__name__: each for each in (unknown, known, huge, large, small, padded, read)}
)


@asynccontextmanager
async def flooding(message: Callable[[int], bytes]) -> AsyncIterator[Endpoint]:
    """A drafter that answers the first open with `message` of its session, again and again, and reads all that it is told."""

    async def draft(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        told = drafter_pb2.DraftRequest.FromString(await anext(requests))
        flood = message(told.events[0].session_id)
        reading = asyncio.create_task(_read(requests))
        try:
            while True:
                yield flood
        finally:
            reading.cancel()

    handler = grpc.stream_stream_rpc_method_handler(draft)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(DRAFTER_SERVICE, {"Draft": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Endpoint(message.__name__, f"127.0.0.1:{port}")
    finally:
        await server.stop(0)


async def _read(requests: AsyncIterator[bytes]) -> None:
    async for _ in requests:
        pass


async def _main(kind: str) -> None:
    async with flooding(KINDS[kind]) as endpoint:
        sys.stdout.write(f"{endpoint.address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
