"""The one place where errors become statuses, and where a server that is not ready says so.

It is an interceptor of the server, so no servicer method can forget it. A servicer raises SpecsplitError and nothing more.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc

from specsplit.errors import SpecsplitError
from specsplit.rpc.catalogue import to_status

_log = logging.getLogger(__name__)

Gate = Callable[[str], SpecsplitError | None]
"""Asked with the method's name ("Decode") before each call: an error refuses it."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""What a servicer method gets beside the request."""

_Behaviour: TypeAlias = "Callable[[Any, Context], Any]"


class _Aborting(Protocol):
    """A part of the context that its published types leave out."""

    async def abort_with_status(self, status: grpc.Status) -> NoReturn: ...


class _Handler(Protocol):
    """What the runtime keeps of a method; its published types describe synchronous servers only."""

    request_deserializer: Any
    response_serializer: Any
    unary_unary: Any
    unary_stream: Any
    stream_unary: Any
    stream_stream: Any


async def abort(context: Context, error: SpecsplitError) -> NoReturn:
    """End the call with the status of `error`."""
    aborting: _Aborting = context  # pyright: ignore[reportAssignmentType]
    await aborting.abort_with_status(to_status(error))


class Edge(grpc.aio.ServerInterceptor):
    """Wraps every handler of the package `specsplit`; health and reflection pass untouched."""

    def __init__(self, service: str, gate: Gate) -> None:
        """`service` is named in the sentence of an internal error."""
        self._service = service
        self._gate = gate

    async def intercept_service(  # pyright: ignore[reportIncompatibleMethodOverride] (see _Handler)
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of this call, wrapped."""
        handler: _Handler | None = await continuation(handler_call_details)
        _, service, method = str(handler_call_details.method).split("/")
        if not service.startswith("specsplit."):
            return handler
        if handler is None:
            return self._refusal_of(method)
        return _rebuilt(handler, lambda behaviour: self._guard(method, behaviour))

    def _guard(self, method: str, behaviour: _Behaviour) -> _Behaviour:
        return (
            self._guard_stream(method, behaviour)
            if inspect.isasyncgenfunction(behaviour)
            else self._guard_unary(method, behaviour)
        )

    def _guard_unary(self, method: str, behaviour: _Behaviour) -> _Behaviour:
        async def guarded(request: Any, context: Context) -> Any:
            try:
                self._enter(method)
                return await behaviour(request, context)
            except SpecsplitError as error:
                await abort(context, error)
            except grpc.aio.AbortError:
                raise
            except Exception:  # noqa: BLE001 (the edge: logged, then answered with INTERNAL)
                await self._abort_unexpected(method, context)

        return guarded

    def _guard_stream(self, method: str, behaviour: _Behaviour) -> _Behaviour:
        async def guarded(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            try:
                self._enter(method)
                # aclosing: when the caller goes away, the servicer's own `finally` runs now, not at garbage collection
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response
            except SpecsplitError as error:
                await abort(context, error)
            except grpc.aio.AbortError:
                raise
            except Exception:  # noqa: BLE001 (the edge: logged, then answered with INTERNAL)
                await self._abort_unexpected(method, context)

        return guarded

    def _enter(self, method: str) -> None:
        refusal = self._gate(method)
        if refusal is not None:
            raise refusal

    async def _abort_unexpected(self, method: str, context: Context) -> None:
        _log.exception("%s failed", method)
        error = SpecsplitError(f"internal error in {method}; the log of the {self._service} says more")
        await abort(context, error)

    def _refusal_of(self, method: str) -> Any:
        """Of a method that no servicer has yet; None leaves it UNIMPLEMENTED."""
        refusal = self._gate(method)
        if refusal is None:
            return None

        async def refuse(request: Any, context: Context) -> None:
            await abort(context, refusal)

        return _maker("unary_unary")(refuse)


def _rebuilt(handler: _Handler, guard: Callable[[_Behaviour], _Behaviour]) -> Any:
    """The same handler around another behaviour."""
    shapes = {
        "unary_unary": handler.unary_unary,
        "unary_stream": handler.unary_stream,
        "stream_unary": handler.stream_unary,
        "stream_stream": handler.stream_stream,
    }
    shape, behaviour = next((shape, behaviour) for shape, behaviour in shapes.items() if behaviour is not None)
    return _maker(shape)(guard(behaviour), handler.request_deserializer, handler.response_serializer)


def _maker(shape: str) -> Callable[..., Any]:
    makers: dict[str, Callable[..., Any]] = {
        "unary_unary": grpc.unary_unary_rpc_method_handler,
        "unary_stream": grpc.unary_stream_rpc_method_handler,
        "stream_unary": grpc.stream_unary_rpc_method_handler,
        "stream_stream": grpc.stream_stream_rpc_method_handler,
    }
    return makers[shape]
