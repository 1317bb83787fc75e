"""Calls of raw bytes, and how they end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection
from smg_grpc_proto.generated import vllm_engine_pb2

from specsplit.rpc import (
    CLUSTER_SERVICE,
    CODES,
    COORDINATOR_SERVICE,
    DRAFTER_SERVICE,
    VERIFIER_SERVICE,
    VLLM_ENGINE_SERVICE,
)
from specsplit.v1 import cluster_pb2, coordinator_pb2, drafter_pb2, verifier_pb2

LISTENS_S: Final = 30.0
"""A call that is to end by itself is given up after so long."""
SILENT_S: Final = 20.0
"""A call that streams its answers, and has brought none for so long when it is given up, hangs; another one goes on."""
UNBOUNDED: Final = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
]
"""A hostile party keeps to no limit of its own."""
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION: Final = reflection.SERVICE_NAME
_KNOWN: Final = (cluster_pb2, coordinator_pb2, drafter_pb2, verifier_pb2, vllm_engine_pb2)
"""Whose descriptors have to be there before services are looked up."""
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
        return f"{self.service.rpartition('.')[2]}.{self.path.split('/')[2]}"

    @property
    def service(self) -> str:
        """The full name of its service."""
        return self.path.split("/")[1]

    @property
    def is_ours(self) -> bool:
        """False for health and reflection, whose sentences are gRPC's own."""
        return not self.path.startswith("/grpc.")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended."""

    code: grpc.StatusCode
    sentence: str
    sent: int = 0
    """Messages that the transport took."""
    answers: tuple[bytes, ...] = ()
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


_OWN: Final = (COORDINATOR_SERVICE, CLUSTER_SERVICE, VLLM_ENGINE_SERVICE, VERIFIER_SERVICE, DRAFTER_SERVICE)
METHODS: Final = MappingProxyType({each.path: each for each in methods_of(*_OWN, HEALTH, REFLECTION)})
"""Every method that a server has, by path."""
GENERATE: Final = METHODS[f"/{COORDINATOR_SERVICE}/Generate"]
JOIN: Final = METHODS[f"/{CLUSTER_SERVICE}/Join"]
DECODE: Final = METHODS[f"/{VERIFIER_SERVICE}/Decode"]
DECODE_SESSIONS: Final = METHODS[f"/{VERIFIER_SERVICE}/DecodeSessions"]
WATCH: Final = METHODS[f"/{VERIFIER_SERVICE}/Watch"]
DRAFT: Final = METHODS[f"/{DRAFTER_SERVICE}/Draft"]


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


async def call(channel: grpc.aio.Channel, method: Method, messages: Iterable[bytes], manner: Manner) -> Ended:
    """Make a call of any kind and return how it ended, by itself or because it was listened to for long enough."""
    sent, answers, last = list[bytes](), list[bytes](), time.monotonic()
    said = _said(messages if method.streams_in else [next(iter(messages), b"")], method, manner, sent)
    made: Any = channel.stream_stream(method.path)(said, timeout=manner.timeout_s, metadata=manner.metadata)
    try:
        async with asyncio.timeout(manner.listens_s):
            if not manner.reads:
                await made.code()
            async for answer in made:
                answers.append(answer)
                last = time.monotonic()
    except TimeoutError:
        made.cancel()
    except grpc.aio.AioRpcError:
        pass
    except asyncio.CancelledError:
        if not made.done():
            made.cancel()
            raise
    silent_s = time.monotonic() - last
    return Ended(await made.code(), await made.details() or "", len(sent), tuple(answers), silent_s)


async def _said(
    messages: Iterable[bytes], method: Method, manner: Manner, sent: list[bytes]
) -> AsyncIterator[bytes]:  # on the wire every call may stream both ways
    for message in messages:
        if sent:
            await asyncio.sleep(manner.pauses[len(sent) % len(manner.pauses)])
        sent.append(message)
        yield message
    if method.streams_in and not manner.hangs_up:
        await asyncio.sleep(manner.listens_s)
