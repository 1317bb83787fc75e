"""Messages that nobody means, for every call of a server: drawn at random from its descriptors, then spoiled."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from specsplit.rpc import CODES

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
ALLOWED = {grpc.StatusCode.OK, *CODES.values()} - {grpc.StatusCode.INTERNAL}
CALLS_AT_ONCE = 32
TIMEOUT_S = 20.0
_OF_THE_CLIENT = "Internal error from Core"
"""What grpc.aio says, on the client's side, of a stream that the server ended while a request was being written to it."""
_OF_AN_EARLIER_LOOP = "PollerCompletionQueue._handle_events"
"""grpc.aio's own, of a call of an earlier test whose event loop is closed."""
_LISTENED_S = 0.05
"""How long a call that does not end by itself is listened to."""

_WORDS = [
    "",
    "a",
    "user",
    "ngram",
    "none",
    "127.0.0.1:1",
    "host:0",
    "\0",
    "é語🦀",
    "[::1]:7",
    "x" * 300,
    "%s{}",
    "../..",
    ":",
]
_NUMBERS = [0, 1, 2, 3, 7, 63, 64, 255, 256, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1, -1, -(2**31)]
_FLOATS = [0.0, 0.5, 1.0, -1.0, 1e308, float("nan"), float("inf"), -float("inf"), 1e-300]


def calls_of(*services: str) -> list[MethodDescriptor]:
    """Every method of these services."""
    found = [cast("ServiceDescriptor", Default().FindServiceByName(name)) for name in services]
    return [method for service in found for method in service.methods]


async def fuzz(address: str, methods: Sequence[MethodDescriptor], examples: Sequence[Message], rounds: int) -> None:
    """Call each method so many times with messages of its own kind, some of them spoiled; see that each ends with a status of ours.

    Half of the messages begin as one of the `examples`, where there is one of that kind.
    """
    chance = random.Random(7)
    room = asyncio.Semaphore(CALLS_AT_ONCE)
    async with grpc.aio.insecure_channel(address) as channel:

        async def one(method: MethodDescriptor, requests: list[bytes]) -> None:
            async with room:
                code, sentence = await _ended(channel, method, requests)
                assert code in ALLOWED or sentence == _OF_THE_CLIENT, (method.full_name, code, sentence, requests)

        async with asyncio.TaskGroup() as calls:
            for method in methods:
                for requests in _drawn(chance, method, examples, rounds):
                    calls.create_task(one(method, requests))


def check_no_tracebacks(records: Sequence[logging.LogRecord]) -> None:
    """See that nothing was logged as a bug."""
    told = [record.getMessage() for record in records if record.levelno >= logging.ERROR or record.exc_info]
    assert [sentence for sentence in told if _OF_AN_EARLIER_LOOP not in sentence] == []


def _drawn(
    chance: random.Random, method: MethodDescriptor, examples: Sequence[Message], rounds: int
) -> Iterator[list[bytes]]:
    kind = cast("Descriptor", method.input_type)
    fitting = [example.SerializeToString() for example in examples if example.DESCRIPTOR is kind]
    for _ in range(rounds):
        requests: list[bytes] = []
        for _ in range(chance.randint(1, 3) if method.client_streaming else 1):
            whole = chance.choice(fitting) if fitting and chance.random() < 0.5 else _message(chance, kind)
            requests.append(_spoiled(chance, whole) if chance.random() < 0.6 else whole)
        yield requests


async def _ended(channel: grpc.aio.Channel, method: MethodDescriptor, requests: list[bytes]) -> tuple[Any, str | None]:
    """How a call ends: by itself, or because it was listened to for long enough."""

    async def sent() -> AsyncIterator[bytes]:
        for request in requests:
            yield request

    shape = "_".join(
        "stream" if streaming else "unary" for streaming in (method.client_streaming, method.server_streaming)
    )
    path = f"/{cast('ServiceDescriptor', method.containing_service).full_name}/{method.name}"
    call = getattr(channel, shape)(path)(sent() if method.client_streaming else requests[0], timeout=TIMEOUT_S)
    if method.name == "Watch":
        asyncio.get_running_loop().call_later(_LISTENED_S, call.cancel)
    try:
        if method.server_streaming:
            async for _ in call:
                pass
    except grpc.aio.AioRpcError:
        pass
    except asyncio.CancelledError:
        if not call.done():
            raise
    return await call.code(), await call.details()


def _message(chance: random.Random, kind: Descriptor) -> bytes:
    return _filled(chance, kind).SerializeToString()


def _filled(chance: random.Random, kind: Descriptor) -> Message:
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if chance.random() < 0.6:
            with suppress(ValueError, TypeError):  # a number that this field has no room for
                _fill(chance, message, field)
    return message


def _fill(chance: random.Random, message: Message, field: FieldDescriptor) -> None:
    values = [_value(chance, field) for _ in range(chance.randint(1, 5) if field.is_repeated else 1)]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)[chance.randint(0, 9)] = 1.0
    elif field.is_repeated:
        getattr(message, field.name).extend(values)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(values[0])
    else:
        setattr(message, field.name, values[0])


def _value(chance: random.Random, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _filled(chance, cast("Descriptor", field.message_type))
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return chance.choice(_WORDS)
        case FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.randint(0, 20))
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            return chance.choice(_FLOATS)
        case FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        case _:
            return chance.choice(_NUMBERS)


def _spoiled(chance: random.Random, data: bytes) -> bytes:
    """With something cut off, put in, doubled or changed."""
    spoiled = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at, until = sorted((chance.randint(0, len(spoiled)), chance.randint(0, len(spoiled))))
        match chance.randint(0, 3):
            case 0:
                del spoiled[at:until]
            case 1:
                spoiled[at:at] = chance.randbytes(chance.randint(1, 8))
            case 2:
                spoiled[at:at] = spoiled[at:until]
            case _:
                spoiled[at : at + 1] = chance.randbytes(1)
    return bytes(spoiled)
