"""A receiver of spans: what a collector is, for a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it came over the wire; ids are hex, an empty parent is a root."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    """(trace id, span id)."""
    failed: bool
    sentence: str
    """Of its status."""
    events: tuple[str, ...]


@dataclass
class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span that is exported to it."""

    address: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list[ReceivedSpan])
    _came: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request: pb.ExportTraceServiceRequest, context: object) -> pb.ExportTraceServiceResponse:  # noqa: N802
        with self._came:
            for of_process in request.resource_spans:
                service = str(_values(of_process.resource.attributes)["service.name"])
                for of_scope in of_process.scope_spans:
                    self.spans += [_received(service, span) for span in of_scope.spans]
            self._came.notify_all()
        return pb.ExportTraceServiceResponse()

    def wait_for(self, condition: Callable[[list[ReceivedSpan]], bool], timeout_s: float = 20) -> list[ReceivedSpan]:
        """The spans, once they meet the condition. Fails if they do not within the time."""
        with self._came:
            met = self._came.wait_for(lambda: condition(self.spans), timeout_s)
            assert met, f"of these spans was expected what did not come: {[span.name for span in self.spans]}"
            return [*self.spans]

    def named(self, name: str, count: int = 1) -> list[ReceivedSpan]:
        """The spans of a name, once there are `count` of them."""
        came = self.wait_for(lambda spans: sum(span.name == name for span in spans) >= count)
        return [span for span in came if span.name == name]


def named(spans: Sequence[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    """Those of a name, in order of time."""
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_ns)


def total(spans: Sequence[ReceivedSpan], attribute: str) -> int:
    """The sum of what all of them say of one attribute."""
    return sum(span.attributes[attribute] for span in spans)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port."""
    receiver = Receiver()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
        receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield receiver
        finally:
            server.stop(0).wait()


def _received(service: str, span: Span) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        sentence=span.status.message,
        events=tuple(event.name for event in span.events),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, which) if which else None
