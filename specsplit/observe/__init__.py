"""What leaves a process for people to read: log records and spans."""

from __future__ import annotations

from specsplit.observe.log import announce, fields, set_up
from specsplit.observe.tracing import SpanEvent, TraceContext, Tracing, set_up_tracing

__all__ = ["SpanEvent", "TraceContext", "Tracing", "announce", "fields", "set_up", "set_up_tracing"]
