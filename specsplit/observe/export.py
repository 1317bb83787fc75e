"""Whether the spans of a service are sent, and where."""

from __future__ import annotations

from specsplit.errors import Unavailable
from specsplit.observe.tracing import Tracing
from specsplit.settings import ServiceSettings


def set_up_tracing(service: str, settings: ServiceSettings) -> Tracing:
    """The tracing of one service. `close` it in the end.

    Raises Unavailable if there is an endpoint and OpenTelemetry is not installed, InvalidRequest if the CA file cannot be read.
    """
    if not settings.trace_endpoint:
        return Tracing(service, settings.trace_scope)
    try:
        from specsplit.observe.otlp import OtlpSink  # noqa: PLC0415 (off means off: nothing of it is loaded)
    except ModuleNotFoundError as error:
        hint = "install what it needs with: pip install 'specsplit[otel]'"
        raise Unavailable(f"trace_endpoint is set, and spans cannot be sent: {error}; {hint}") from error
    scope = settings.trace_scope
    tracing = Tracing(service, scope, sink := OtlpSink(service, settings))
    sink.follow(lambda: tracing.scope.ratio)
    return tracing
