"""grpc.health.v1, able to say NOT_SERVING.

The handlers are async generators (the stock `Watch` uses `context.write`, which tracing interceptors of grpc.aio break).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specsplit.errors import DeadlineExceeded, NotFound, Unsupported, quoted
from specsplit.rpc.catalogue import from_rpc_error
from specsplit.rpc.edge import Context, abort
from specsplit.wire.reading import intact

Status = health_pb2.HealthCheckResponse.ServingStatus.ValueType
SERVING: Status = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Status = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

_CHECK = "/grpc.health.v1.Health/Check"
_WATCH = "/grpc.health.v1.Health/Watch"
_NOT_YET = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
"""How a watch ends while the peer comes up, and when the time is up."""


class Health(health_pb2_grpc.HealthServicer):
    """One status for the whole server, given for the empty name and for every service it has."""

    def __init__(self, services: Iterable[str]) -> None:
        """The status is NOT_SERVING until `set_serving`."""
        self._services = frozenset({"", *services})
        self._status: Status = NOT_SERVING
        self._closed = False
        self._changed = asyncio.Event()

    def set_serving(self, serving: bool) -> None:
        """Change the status, and tell everyone who watches."""
        self._status = SERVING if serving else NOT_SERVING
        self._wake()

    def close(self) -> None:
        """End every watch, so that the server can stop."""
        self._closed = True
        self._wake()

    async def Check(  # noqa: N802 (the name is the protocol's)
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Answer with the status now; NOT_FOUND for a service that is not here."""
        status = self._status_of(request.service)
        if status == SERVICE_UNKNOWN:
            await abort(context, NotFound(f"there is no service {quoted(request.service)} here"))
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 (the name is the protocol's)
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Stream the status now and at every change, until the server stops."""
        sent: Status | None = None
        while not self._closed:
            changed, status = self._changed, self._status_of(request.service)
            if status != sent:
                sent = status
                yield health_pb2.HealthCheckResponse(status=status)
            await changed.wait()

    async def List(self, request: object, context: Context) -> NoReturn:  # noqa: N802
        """A later addition to the protocol, which not every release of its library has messages for: refused."""
        await abort(context, Unsupported("List", "is not supported; ask for a service by name, with Check or Watch"))

    def _status_of(self, service: str) -> Status:
        return self._status if service in self._services else SERVICE_UNKNOWN

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def health_of_blocking(channel: grpc.Channel, timeout_s: float, service: str = "") -> str:
    """What the peer says of itself now: SERVING, NOT_SERVING, ... Raises what the failed call stands for if it says nothing in time."""
    check = channel.unary_unary(
        _CHECK,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    try:
        response = check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
    return health_pb2.HealthCheckResponse.ServingStatus.Name(intact(response).status)


async def wait_until_serving(channel: grpc.aio.Channel, timeout_s: float, service: str = "") -> None:
    """Return once the peer says SERVING, however late it starts to listen.

    Raises DeadlineExceeded if it does not within `timeout_s`, and what the peer says if it is no specsplit server.
    """
    watch = channel.unary_stream(
        _WATCH,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    request = health_pb2.HealthCheckRequest(service=service)
    try:
        async with asyncio.timeout(timeout_s):
            while not await _until_serving(watch(request, wait_for_ready=True)):
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise DeadlineExceeded(f"not serving after {timeout_s:g} s") from error


def wait_until_serving_blocking(channel: grpc.Channel, timeout_s: float, service: str = "") -> None:
    """Like `wait_until_serving`, for code without an event loop."""
    watch = channel.unary_stream(
        _WATCH,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    request = health_pb2.HealthCheckRequest(service=service)
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        call = watch(request, timeout=left_s, wait_for_ready=True)
        try:
            if any(intact(response).status == SERVING for response in call):
                return
        except grpc.RpcError as error:
            if error.code() not in _NOT_YET:
                raise from_rpc_error(error) from error
        finally:
            call.cancel()
        time.sleep(0.05)
    raise DeadlineExceeded(f"not serving after {timeout_s:g} s")


async def _until_serving(responses: AsyncIterable[health_pb2.HealthCheckResponse]) -> bool:
    """True at the first SERVING; False if the peer went away before."""
    try:
        async for response in responses:
            if intact(response).status == SERVING:
                return True
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise from_rpc_error(error) from error
    return False
