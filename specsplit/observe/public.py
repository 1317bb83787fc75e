"""What specsplit.observe offers; it is imported when the first of it is asked for."""

from __future__ import annotations

from specsplit.observe.export import set_up_tracing
from specsplit.observe.log import announce, set_up
from specsplit.observe.record import fields
from specsplit.observe.tracing import SpanEvent, TraceContext, Tracing

__all__ = ["SpanEvent", "TraceContext", "Tracing", "announce", "fields", "set_up", "set_up_tracing"]
