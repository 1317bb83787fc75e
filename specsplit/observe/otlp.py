"""Spans to an OTLP receiver. The only module that needs the OpenTelemetry SDK; loaded only when there is a receiver."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, use_span

from specsplit import __version__
from specsplit.observe.tracing import Attributes, SpanEvent, TraceContext, wall_ns
from specsplit.settings import MemberSettings, ServiceSettings
from specsplit.settings.address import is_loopback, split
from specsplit.settings.files import read_text

_log = logging.getLogger(__name__)

QUEUE = 16_384
"""Spans that may wait to be sent; the oldest beyond it are lost, with a warning."""
BATCH = 512
DELAY_S = 1.0
"""Longest wait of a span before it is sent."""
EXPORT_TIMEOUT_S = 5.0
FLUSH_S = 3.0
"""Longest wait for the receiver when the process leaves."""

_OK = Status(StatusCode.UNSET)


class _Ids(IdGenerator):
    """From the operating system: processes that seed `random` alike must not draw alike ids."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or self.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or self.generate_trace_id()


class _Ratio(Sampler):
    """Samples as TraceIdRatioBased does, with a ratio that may change."""

    def __init__(self) -> None:
        self.ratio: Callable[[], float] = lambda: 1.0

    def should_sample(self, *args: object, **kwargs: object) -> SamplingResult:
        return TraceIdRatioBased(self.ratio()).should_sample(*args, **kwargs)  # pyright: ignore[reportArgumentType]

    def get_description(self) -> str:
        return "TraceIdRatioBased, adjustable"


class OtlpSink:
    """Batches spans and sends them on a thread of its own."""

    def __init__(self, service: str, settings: ServiceSettings) -> None:
        """Raises InvalidRequest if the CA file cannot be read."""
        self._ids = _Ids()
        self._ratio = _Ratio()
        self._exporter = _exporter(settings)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=QUEUE, schedule_delay_millis=DELAY_S * 1e3, max_export_batch_size=BATCH
        )
        self._resource = Resource.create(_resource(service, settings))
        self._scope = InstrumentationScope("specsplit", __version__)
        provider = TracerProvider(
            sampler=ParentBased(self._ratio),
            resource=self._resource,
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._processor)
        self.tracer = provider.get_tracer("specsplit", __version__)

    def follow(self, ratio: Callable[[], float]) -> None:
        """Ask `ratio`, at every new trace, for the share of traces that are kept."""
        self._ratio.ratio = ratio

    def new_trace_id(self) -> int:
        """Draw a random 128-bit number."""
        return self._ids.generate_trace_id()

    def new_span_id(self) -> int:
        """Draw a random 64-bit number."""
        return self._ids.generate_span_id()

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
        """Queue one span for export.

        It is over, so it is made as a finished one: a seventh of the time that starting and ending one through a Tracer takes.
        """
        self._processor.on_end(
            ReadableSpan(
                name,
                context=_span_context(context),
                parent=_span_context(parent) if parent else None,
                resource=self._resource,
                attributes=attributes,
                links=tuple(Link(_span_context(link)) for link in links),
                events=tuple(Event(each.name, each.attributes, wall_ns(each.at_s)) for each in events),
                status=Status(StatusCode.ERROR, error) if error is not None else _OK,
                start_time=start_ns,
                end_time=end_ns,
                instrumentation_scope=self._scope,
            )
        )

    def within(self, context: TraceContext) -> AbstractContextManager[object]:
        """Make `context` current inside."""
        return use_span(NonRecordingSpan(_span_context(context)), record_exception=False, set_status_on_exception=False)

    def close(self) -> None:
        """Send what is queued, for at most `FLUSH_S` seconds."""
        flushing = threading.Thread(target=self._processor.shutdown, name="flush-spans", daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)
        if flushing.is_alive():
            _log.warning("the receiver of spans did not take them in %g s; the last ones are lost", FLUSH_S)
            self._exporter.shutdown()  # pyright: ignore[reportUnknownMemberType]


def _exporter(settings: ServiceSettings) -> OTLPSpanExporter:
    host, _ = split("trace_endpoint", settings.trace_endpoint)
    secured = settings.tls_ca is not None and not is_loopback(host)
    return OTLPSpanExporter(
        endpoint=settings.trace_endpoint,
        insecure=not secured,
        credentials=_credentials(settings) if secured else None,
        timeout=EXPORT_TIMEOUT_S,
        channel_options=(("grpc.enable_http_proxy", 0),),  # pyright: ignore[reportArgumentType] (an option may be a number)
    )


def _credentials(settings: ServiceSettings) -> grpc.ChannelCredentials:
    assert settings.tls_ca is not None
    return grpc.ssl_channel_credentials(read_text("tls_ca", settings.tls_ca, twice=True).encode())


def _resource(service: str, settings: ServiceSettings) -> dict[str, str]:
    """Describe who makes the spans in OpenTelemetry's words."""
    name = settings.member_id if isinstance(settings, MemberSettings) else ""
    return {
        "service.name": f"specsplit-{service}",
        "service.namespace": "specsplit",
        "service.version": __version__,
        "service.instance.id": name or f"{socket.gethostname()}-{os.getpid()}",
    }


def _span_context(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=False, trace_flags=flags)
