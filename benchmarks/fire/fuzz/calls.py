"""Calls of raw bytes, and how they end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from specsplit.rpc import CODES
from specsplit.v1 import cluster_pb2, coordinator_pb2, drafter_pb2, verifier_pb2

LISTENS_S: Final = 30.0
"""A call that is to end by itself is given up after so long."""
SILENT_S: Final = 20.0
"""A call that streams its answers, and has brought none for so long when it is given up, hangs; another one goes on."""
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION: Final = reflection.SERVICE_NAME
MODULES: Final = (cluster_pb2, coordinator_pb2, drafter_pb2, verifier_pb2)
"""Whose descriptors have to be known before services are looked up."""
ALLOWED: Final = frozenset({grpc.StatusCode.OK, *CODES.values()} - {grpc.StatusCode.INTERNAL})
"""How a call may end, whatever was sent."""
_NO_FAULT: Final = re.compile(r"^Internal error from Core$|^verifier \S+ ended the session without saying why$")
"""What may stand behind INTERNAL: what grpc.aio says, on the client's side, of a stream that the server ended while a request was being
written to it; and what a coordinator says of a verifier that breaks a session off with status OK, which no honest one does."""
_NAMES_A_FIELD: Final = re.compile(r"\S+: ")


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC as far as bytes go."""

    path: str
    """/service/Method."""
    streams_in: bool
    streams_out: bool
    request: Descriptor
    answer: Descriptor

    @property
    def name(self) -> str:
        """service.Method, without package."""
        service, _, method = self.path.removeprefix("/").rpartition("/")
        return f"{service.rpartition('.')[2]}.{method}"

    @property
    def is_ours(self) -> bool:
        """False for health and reflection, whose sentences are gRPC's own."""
        return self.path.startswith("/specsplit.")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended."""

    code: grpc.StatusCode
    sentence: str
    sent: int
    """Messages that the transport took."""
    answers: int
    silent_s: float = 0.0
    """From the last answer, or the beginning, to the end."""

    def fault(self, method: Method) -> str | None:
        """What is wrong with that, if anything is."""
        if self.code not in ALLOWED and not _NO_FAULT.search(self.sentence):
            return f"{method.name} ended with {self.code.name}: {self.sentence}"
        if self.code is grpc.StatusCode.CANCELLED and (not method.streams_out or self.silent_s >= SILENT_S):
            return f"{method.name} hung: it was not over when its caller gave up, {self.silent_s:.0f} s after its last answer"
        nameless = self.code is grpc.StatusCode.INVALID_ARGUMENT and not _NAMES_A_FIELD.match(self.sentence)
        if nameless and method.is_ours:
            return f"{method.name} ended with INVALID_ARGUMENT, and names no field: {self.sentence}"
        return None


def methods_of(*services: str) -> list[Method]:
    """Every method of these services."""
    found = [cast("ServiceDescriptor", Default().FindServiceByName(name)) for name in services]
    return [_method(service, method) for service in found for method in service.methods]


def _method(service: ServiceDescriptor, method: MethodDescriptor) -> Method:
    request, answer = cast("Descriptor", method.input_type), cast("Descriptor", method.output_type)
    path = f"/{service.full_name}/{method.name}"
    return Method(path, method.client_streaming, method.server_streaming, request, answer)


@dataclass(frozen=True, slots=True)
class Manner:
    """How a caller behaves, messages apart."""

    metadata: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = 30.0
    """The deadline that the server is told."""
    pauses: tuple[float, ...] = (0.0,)
    """Seconds between messages, over and over."""
    hangs_up: bool = True
    """False: the caller leaves its side of the stream open when it has said everything."""
    listens_s: float = LISTENS_S
    """After so long he cancels the call."""
    reads: bool = True
    """False: he takes no answer."""


class _Said:
    """What a caller says, message by message, and how much of it was taken."""

    def __init__(self, messages: Iterable[bytes], manner: Manner) -> None:
        self.sent = 0
        self._messages = messages
        self._manner = manner

    async def stream(self) -> AsyncIterator[bytes]:
        """The messages with their pauses."""
        pauses = self._manner.pauses
        for number, message in enumerate(self._messages):
            if number:
                await asyncio.sleep(pauses[number % len(pauses)])
            self.sent += 1
            yield message
        if not self._manner.hangs_up:
            await asyncio.sleep(self._manner.listens_s)

    def alone(self) -> bytes:
        """The one message of a call that does not stream."""
        self.sent = 1
        return next(iter(self._messages), b"")


class _Heard:
    """What a caller hears, and when he heard something last."""

    def __init__(self) -> None:
        self.answers = 0
        self._last = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Since the last answer, or since the beginning."""
        return time.monotonic() - self._last

    async def listen(self, made: Any, manner: Manner, *, reads: bool) -> None:
        """Wait for the end of a call, or end it after so long."""
        try:
            async with asyncio.timeout(manner.listens_s):
                if reads:
                    async for _ in made:
                        self.answers += 1
                        self._last = time.monotonic()
                else:
                    await made.code()
        except TimeoutError:
            made.cancel()
        except grpc.aio.AioRpcError:
            pass
        except asyncio.CancelledError:
            if not made.done():
                made.cancel()
                raise


async def call(channel: grpc.aio.Channel, method: Method, messages: Iterable[bytes], manner: Manner) -> Ended:
    """Make a call and return how it ended, by itself or because it was listened to for long enough."""
    said = _Said(messages, manner)
    shape = "_".join("stream" if streams else "unary" for streams in (method.streams_in, method.streams_out))
    first = said.stream() if method.streams_in else said.alone()
    made: Any = getattr(channel, shape)(method.path)(first, timeout=manner.timeout_s, metadata=manner.metadata)
    heard = _Heard()
    await heard.listen(made, manner, reads=method.streams_out and manner.reads)
    return Ended(await made.code(), await made.details() or "", said.sent, heard.answers, heard.silent_s)
