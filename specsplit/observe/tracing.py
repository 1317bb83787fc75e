"""Spans of one service, made after the fact: whoever knows when something began and ended says so, once it is over.

Without a receiver (`trace_endpoint`) there is no OpenTelemetry in the process at all, and `wants` is False at every level. A caller asks
`wants`, or `follows` for one request, before it builds what it would pass to `span`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias

from specsplit.values import TraceChanges, TraceScope

Attributes: TypeAlias = Mapping[str, str | bool | int | float | Sequence[str]]

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The ids of the span that something belongs to, wherever that span is made."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    sampled: bool
    """False: the request is not traced, and no service makes spans for it."""

    @property
    def traceparent(self) -> str:
        """The context as W3C Trace Context writes it (https://www.w3.org/TR/trace-context/)."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    @staticmethod
    def parse(traceparent: str) -> TraceContext | None:
        """What a peer wrote; None for an empty or broken text, which the standard has us treat as none at all."""
        parts = _TRACEPARENT.fullmatch(traceparent)
        return TraceContext(int(parts[1], 16), int(parts[2], 16), bool(int(parts[3], 16) & 1)) if parts else None


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span, at one time of the monotonic clock."""

    name: str
    at_s: float
    attributes: Attributes


class SpanSink(Protocol):
    """Takes finished spans, from any thread."""

    tracer: Any
    """OpenTelemetry's, for instrumentation that makes its spans itself."""

    def new_trace_id(self) -> int:
        """Draw a random 128-bit number."""
        ...

    def new_span_id(self) -> int:
        """Draw a random 64-bit number."""
        ...

    def emit(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        context: TraceContext,
        parent: TraceContext | None,
        attributes: Attributes,
        links: Sequence[TraceContext],
        error: str | None,
        events: Sequence[SpanEvent] = (),
    ) -> None:
        """Queue one span for export."""
        ...

    def within(self, context: TraceContext) -> AbstractContextManager[object]:
        """Make `context` current inside."""
        ...

    def close(self) -> None:
        """Send what is queued, within a few seconds, and stop."""
        ...


class Tracing:
    """The spans of one service. Times are seconds of the monotonic clock (`specsplit.clock.SystemClock`). Any thread may call it."""

    def __init__(self, service: str, scope: TraceScope, sink: SpanSink | None = None) -> None:
        """Without a sink no span is ever made."""
        self._service = service
        self._own_scope = scope
        self.sink = sink
        """Where spans go; None: tracing is off for as long as this process lives."""
        self.scope = scope
        self._level = 0
        self.apply(TraceChanges())

    def apply(self, changes: TraceChanges) -> None:
        """From now on trace what the settings say, with these changes. Raises InvalidRequest for a value out of range."""
        self.scope = changes.over(self._own_scope)
        self._level = self.scope.level_of(self._service) if self.sink is not None else 0

    def wants(self, level: int) -> bool:
        """True if this service makes spans of `level` (1..3) now."""
        return level <= self._level

    def follows(self, level: int, parent: TraceContext | None) -> bool:
        """True if it makes spans of `level` below `parent`: it wants them, and the request is traced."""
        return level <= self._level and parent is not None and parent.sampled

    def current(self) -> TraceContext | None:
        """The span of the call that the running task serves; None outside of one, or if nobody traces it."""
        return None if self.sink is None else current_span()

    def within(self, context: TraceContext | None) -> AbstractContextManager[object]:
        """Calls that are begun inside belong below `context`; not across an await. None: below what is current anyway."""
        return nullcontext() if self.sink is None or context is None else self.sink.within(context)

    def below(self, parent: TraceContext) -> TraceContext:
        """The context of a span that is yet to be made below `parent`, so that others can already be made below it."""
        assert self.sink is not None, "ask `follows` first"
        return TraceContext(parent.trace_id, self.sink.new_span_id(), parent.sampled)

    def span(
        self,
        name: str,
        start_s: float,
        end_s: float,
        *,
        parent: TraceContext | None,
        context: TraceContext | None = None,
        attributes: Attributes | None = None,
        links: Sequence[TraceContext] = (),
        events: Sequence[SpanEvent] = (),
        error: str | None = None,
    ) -> TraceContext | None:
        """Make a span below `parent`; its context, for what belongs below it or links to it.

        None, and no span, if the request is not traced (`parent` None or not sampled) or there is no sink. `context` is what `below` gave.
        `error` says why it failed.
        """
        if self.sink is None or parent is None or not parent.sampled:
            return None
        context = context or self.below(parent)
        self._emit(name, start_s, end_s, context, parent, attributes, links, error, events)
        return context

    def batch(
        self, name: str, start_s: float, end_s: float, *, attributes: Attributes | None = None
    ) -> TraceContext | None:
        """Make a span that is the root of a trace of its own, for what many requests share; they link to it.

        It is always recorded: call it only for a batch that a traced request is in.
        """
        if self.sink is None:
            return None
        context = TraceContext(self.sink.new_trace_id(), self.sink.new_span_id(), sampled=True)
        self._emit(name, start_s, end_s, context, None, attributes, (), None)
        return context

    def close(self) -> None:
        """Send what is queued; takes a few seconds at most. Spans made later are lost."""
        if self.sink is not None:
            self.sink.close()

    def _emit(
        self,
        name: str,
        start_s: float,
        end_s: float,
        context: TraceContext,
        parent: TraceContext | None,
        attributes: Attributes | None,
        links: Sequence[TraceContext],
        error: str | None,
        events: Sequence[SpanEvent] = (),
    ) -> None:
        assert self.sink is not None
        start_ns, end_ns = wall_ns(start_s), wall_ns(end_s)
        self.sink.emit(name, start_ns, end_ns, context, parent, attributes or {}, links, error, events)


def current_span() -> TraceContext | None:
    """The span that is current in the running task or thread, if anything in this process makes spans."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return TraceContext(context.trace_id, context.span_id, bool(context.trace_flags & 1))


def trace_metadata() -> tuple[tuple[str, str], ...] | None:
    """Metadata that puts a call below the current span of the caller's program, if that program traces at all."""
    span = current_span()
    return None if span is None else (("traceparent", span.traceparent),)


def wall_ns(monotonic_s: float) -> int:
    """Convert a moment of the monotonic clock to nanoseconds since 1970."""
    return wall_offset_ns() + round(monotonic_s * 1e9)


@cache
def wall_offset_ns() -> int:
    """What to add to the monotonic clock for the time of day: taken once per process, so that a step of the wall clock tears no trace."""
    before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return wall - (before + after) // 2
