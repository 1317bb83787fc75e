"""The one place where errors become statuses, and where what may not come in is refused.

That is a caller whom nobody knows, or who may not do this; any caller while the server is not ready; and what is no message. Nothing is
parsed of what somebody sends whom nobody knows.

It is an interceptor of the server, so no servicer method can forget it. A servicer raises SpecsplitError and nothing more.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc

from specsplit.errors import SpecsplitError, quoted
from specsplit.rpc.catalogue import to_status
from specsplit.rpc.names import CALLED
from specsplit.rpc.permissions import PERMISSIONS
from specsplit.wire.reading import Read, intact, request_reader

_log = logging.getLogger(__name__)

Gate = Callable[[str], SpecsplitError | None]
"""Asked with the method's name ("Decode") before each call: an error refuses it."""
Admit = Callable[[str, Any], None]
"""Asked with "/service/Method" and the context, before anything else. Raises what refuses the caller."""

Lasts = Callable[[str, Any], AbstractContextManager[None]]
"""Given "/service/Method" and the context of a call that streams its answers: what is open while it is served."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""What a servicer method gets beside the request."""

_Behaviour: TypeAlias = "Callable[[Any, Context], Any]"
_Door: TypeAlias = "Callable[[Any, Context], Any]"
"""Given the bytes that came, and the context, returns what the behaviour is given. Raises what refuses the call."""


class _Aborting(Protocol):
    """A part of the context that its published types leave out."""

    async def abort_with_status(self, status: grpc.Status) -> NoReturn: ...


class _Handler(Protocol):
    """What the runtime keeps of a method; its published types describe synchronous servers only."""

    request_streaming: bool
    request_deserializer: Read
    response_serializer: Any


_SHAPES = "unary_unary", "unary_stream", "stream_unary", "stream_stream"
"""A handler has its behaviour below the name of one of them."""


async def abort(context: Context, error: SpecsplitError) -> NoReturn:
    """End the call with the status of `error`."""
    aborting: _Aborting = context  # pyright: ignore[reportAssignmentType]
    await aborting.abort_with_status(to_status(error))


class Edge(grpc.aio.ServerInterceptor):
    """Wraps every handler. The gate is that of the services of `specsplit.rpc.names`; health and reflection are always open."""

    def __init__(self, service: str, gate: Gate, admit: Admit | None = None, lasts: Lasts | None = None) -> None:
        """`service` is named in the sentence of an internal error; without `admit` nobody is asked who he is."""
        self._service = service
        self._gate = gate
        self._admit = admit or _let_in
        self._lasts = lasts or _unwatched

    async def intercept_service(  # pyright: ignore[reportIncompatibleMethodOverride] (see _Handler)
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of this call."""
        handler: _Handler | None = await continuation(handler_call_details)
        path = str(handler_call_details.method)
        service, _, method = path.removeprefix("/").rpartition("/")
        own = service in CALLED or service.startswith("specsplit.")
        gate, admit = self._gate if own else _always_open, partial(self._admit, path)
        if handler is None:
            asks = admit if path in PERMISSIONS else partial(_let_in, path)
            return _absent(asks, gate(method), _no_such_call(self._service, service, method)) if own else None
        return _rebuilt(handler, lambda behaviour: self._guard(path, _door(handler, method, gate, admit), behaviour))

    def _guard(self, path: str, door: _Door, behaviour: _Behaviour) -> _Behaviour:
        guard = self._guard_stream if inspect.isasyncgenfunction(behaviour) else self._guard_unary
        return guard(path, door, behaviour)

    def _guard_unary(self, path: str, door: _Door, behaviour: _Behaviour) -> _Behaviour:
        async def guarded(request: Any, context: Context) -> Any:
            try:
                return await behaviour(door(request, context), context)
            except SpecsplitError as error:
                await abort(context, error)
            except Exception as error:
                if _is_over(error):
                    raise
                await self._abort_unexpected(path, context)

        return guarded

    def _guard_stream(self, path: str, door: _Door, behaviour: _Behaviour) -> _Behaviour:
        async def guarded(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            try:
                told = door(request, context)
                # aclosing: when the caller goes away, the servicer's own `finally` runs now, not at garbage collection
                async with aclosing(behaviour(told, context)) as responses:
                    with self._lasts(path, context):
                        async for response in responses:
                            yield response
            except SpecsplitError as error:
                await abort(context, error)
            except Exception as error:
                if _is_over(error):
                    raise
                await self._abort_unexpected(path, context)

        return guarded

    async def _abort_unexpected(self, path: str, context: Context) -> None:
        method = path.rpartition("/")[2]
        _log.exception("%s failed", method)
        error = SpecsplitError(f"internal error in {method}; the log of the {self._service} says more")
        await abort(context, error)


def _is_over(error: Exception) -> bool:
    """Whether gRPC's own error says that the call was aborted or left by its caller or the server has stopped, and not that it was used
    wrongly, say.

    What cannot be sent to a caller who has left raises a kind of InternalError that grpc.aio does not export, and that it takes care of.
    """
    return isinstance(error, grpc.aio.BaseError) and type(error) not in (grpc.aio.UsageError, grpc.aio.InternalError)


def _always_open(method: str) -> None:
    """The gate of what is asked for before a server is ready, and while it drains."""


def _unwatched(path: str, context: Any) -> AbstractContextManager[None]:
    """Whoever was let in stays."""
    return nullcontext()


def _let_in(method: str, context: Any) -> None:
    """Admit whoever calls."""


def _door(handler: _Handler, method: str, gate: Gate, admit: Callable[[Context], None]) -> _Door:
    read = request_reader(handler.request_deserializer)

    def door(request: Any, context: Context) -> Any:
        admit(context)
        refusal = gate(method)
        if refusal is not None:
            raise refusal
        return _AllIntact(request, read) if handler.request_streaming else intact(read(request))

    return door


class _AllIntact:
    """The requests of a stream, up to the first that could not be read."""

    def __init__(self, requests: AsyncIterator[bytes], read: Read) -> None:
        self._requests = requests
        self._read = read

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return intact(self._read(await anext(self._requests)))


def _no_such_call(here: str, service: str, method: str) -> str:
    """The error for a method that a service ("verifier") does not have; it names the service that does."""
    wanted = CALLED.get(service, (here,))
    if here in wanted:
        return f"the {here} that answers here does not know the call {quoted(method)}; it may be of another build"
    return (
        f"a {here} answers here, and {quoted(method)} is a call to a {' or a '.join(wanted)}; give the address of one"
    )


def _absent(admit: Callable[[Context], None], refusal: SpecsplitError | None, sentence: str) -> Any:
    """The handler of a method that no servicer here has, or has yet."""

    async def refuse(request: Any, context: Context) -> None:
        try:
            admit(context)
        except SpecsplitError as error:
            await abort(context, error)
        if refusal is not None:
            await abort(context, refusal)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, sentence)

    return _made("unary_unary", refuse)


def _rebuilt(handler: _Handler, guard: Callable[[_Behaviour], _Behaviour]) -> Any:
    """Build the same kind of handler around another behaviour."""
    shape = next(shape for shape in _SHAPES if getattr(handler, shape) is not None)
    return _made(shape, guard(getattr(handler, shape)), None, handler.response_serializer)


def _made(shape: str, *arguments: Any) -> Any:
    """Build a handler of that shape."""
    return getattr(grpc, f"{shape}_rpc_method_handler")(*arguments)
