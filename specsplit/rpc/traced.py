"""Spans of calls, and the trace that travels in their metadata. Loaded only in a process that sends spans.

The interceptors are those of opentelemetry-instrumentation-grpc, but for four of its ways:

* It ends a span where it can see the end, which it cannot if a stream is cancelled between two messages: such a span ends at garbage
  collection, or never. Here a span ends when the call is over.
* It learns the status of a call only from `abort` and `set_code`. Here the status is what the call really ended with, so that of our own
  errors (`specsplit.rpc.edge`), of a caller that went away and of a deadline too.
* It wants health checks filtered. Here only calls that carry out a request are traced: `Join` and `Draft` outlive requests, and who asks
  for the state of the cluster every second asks for no trace.
* It passes nothing on where it makes no span. Here a service that is told to make none hands its caller's trace on.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, cast

import grpc
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.grpc._aio_client import (  # pyright: ignore[reportMissingTypeStubs]
    UnaryStreamAioClientInterceptor,
)
from opentelemetry.instrumentation.grpc._aio_server import (  # pyright: ignore[reportMissingTypeStubs]
    OpenTelemetryAioServerInterceptor,
)
from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from specsplit.clock import SystemClock
from specsplit.observe.tracing import SpanSink, Tracing, wall_ns
from specsplit.rpc.catalogue import code_of_departure
from specsplit.rpc.names import COORDINATOR_SERVICE, VERIFIER_SERVICE, VLLM_ENGINE_SERVICE

TRACED = frozenset(
    {f"/{COORDINATOR_SERVICE}/Generate", f"/{VLLM_ENGINE_SERVICE}/Generate", f"/{VERIFIER_SERVICE}/Decode"}
)
"""The calls that carry out a request."""

_STATUS = "rpc.grpc.status_code"
_OWN_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""What is an error of the server too, as OpenTelemetry's conventions for RPC have it; the others are the caller's."""


class _Details(Protocol):
    """The fields of the call details that an interceptor gets."""

    method: str | bytes


class _ServerContext(Protocol):
    """A part of the context that its published types give otherwise."""

    def code(self) -> grpc.StatusCode | None: ...
    def details(self) -> str | None: ...
    def time_remaining(self) -> float | None: ...
    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...] | None: ...
    def add_done_callback(self, callback: Any) -> None: ...


def server_interceptor(tracing: Tracing) -> grpc.aio.ServerInterceptor:
    """Makes a span of every call that carries out a request, current while it is served."""
    return _ServerInterceptor(_Starter(tracing), filter_=_is_traced)


def client_interceptor(tracing: Tracing) -> grpc.aio.ClientInterceptor:
    """Makes a span of every call to a verifier, below the current one, and passes the trace on."""
    return _ClientInterceptor(_Tracer(tracing), filter_=_is_traced)


def _is_traced(details: _Details) -> bool:
    method = details.method
    return (method.decode() if isinstance(method, bytes) else method) in TRACED


def _sink(tracing: Tracing) -> SpanSink:
    assert tracing.sink is not None, "interceptors are for a process that sends spans"
    return tracing.sink


def _now_ns() -> int:
    """Read the clock that all other spans of this process use."""
    return wall_ns(SystemClock().now())


class _Tracer:
    """A tracer as the instrumentation of the client uses it."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._tracer = _sink(tracing).tracer

    def start_as_current_span(self, name: str, **how: Any) -> AbstractContextManager[Span]:
        """A new span; the current one, whoever made it, if none is wanted."""
        if not self._tracing.wants(1):
            return nullcontext(trace.get_current_span())
        return self._tracer.start_as_current_span(name, start_time=_now_ns(), **how)


class _Starter:
    """What the server's instrumentation asks for spans: it gets one that is begun, and no say in its end."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._tracer = _sink(tracing).tracer

    def start_as_current_span(self, name: str, kind: SpanKind, attributes: dict[str, Any], **_: object) -> Span:
        """Start a span; give the caller's own if none is wanted."""
        if not self._tracing.wants(1):
            return trace.get_current_span()
        return self._tracer.start_span(name, kind=kind, attributes=attributes, start_time=_now_ns())


class _ServerInterceptor(OpenTelemetryAioServerInterceptor):
    """A call has a task of its own, so what is made current in it needs no undoing; a generator that is left hanging would undo it
    in the wrong task.
    """

    @contextmanager
    def _set_remote_context(self, servicer_context: _ServerContext) -> Generator[None]:
        otel_context.attach(extract(dict(servicer_context.invocation_metadata() or ())))
        yield

    @contextmanager
    def _start_span(
        self, handler_call_details: _Details, context: _ServerContext, set_status_on_exception: bool = False
    ) -> Generator[Span]:
        span = cast("Span", super()._start_span(handler_call_details, context, set_status_on_exception))  # pyright: ignore[reportUnknownMemberType]
        otel_context.attach(trace.set_span_in_context(span))
        call = _Served(span, context.time_remaining())
        context.add_done_callback(call.over)
        yield trace.INVALID_SPAN  # what the instrumentation would say of it is said in `over`, and truly
        call.answered = True


class _Served:
    """One call that is being served."""

    def __init__(self, span: Span, allowed_s: float | None) -> None:
        """`allowed_s`: what its caller gives it; None: no deadline."""
        self._span = span
        self._allowed_s = allowed_s
        self.answered = False
        """The handler came to its end."""

    def over(self, context: _ServerContext) -> None:
        """Make the span of the call, which is over, however it ended."""
        code = context.code() or self._unsaid(context)
        self._span.set_attribute(_STATUS, _number(code))
        if code in _OWN_FAULTS:
            self._span.set_status(Status(StatusCode.ERROR, context.details() or code.name))
        self._span.end(_now_ns())

    def _unsaid(self, context: _ServerContext) -> grpc.StatusCode:
        """Tell how a call ended that this side gave no status."""
        if self.answered:
            return grpc.StatusCode.OK
        return code_of_departure(context.time_remaining(), self._allowed_s)


class _ClientInterceptor(UnaryStreamAioClientInterceptor):
    """Leaves the call as it is, and watches for its end."""

    def _wrap_stream_response(self, span: Span, call: grpc.aio.UnaryStreamCall[Any, Any]) -> Any:
        call.add_done_callback(partial(_asked, span))  # pyright: ignore[reportArgumentType]
        return call


def _asked(span: Span, call: grpc.aio.Call) -> None:
    """Make the span of a call that this process made, which is over."""
    code, details = _now(call.code()), _now(call.details())
    span.set_attribute(_STATUS, _number(code))
    if code is not grpc.StatusCode.OK:
        span.set_status(Status(StatusCode.ERROR, details or code.name))
    span.end(_now_ns())


def _number(code: grpc.StatusCode) -> int:
    return int(code.value[0])


def _now(coroutine: Any) -> Any:
    """What a coroutine returns that has nothing to wait for, as those of a call that is over."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a call that is over had something to wait for")
