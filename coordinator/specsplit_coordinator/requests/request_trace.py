"""The spans of one request: one for each stage, and one of the whole, which the others hang below."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from specsplit.clock import Clock
from specsplit.errors import SpecsplitError
from specsplit.observe import SpanEvent, TraceContext, Tracing

Value = str | int | float | list[str]
Note = Callable[[str, Value], None]
"""Adds an attribute to a span that is not over yet."""


class RequestTrace:
    """To be made in the task of the call, whose span is the parent of all."""

    def __init__(self, tracing: Tracing, clock: Clock) -> None:
        self._tracing = tracing
        self._clock = clock
        self._caller = tracing.current()
        followed = self._caller is not None and tracing.follows(1, self._caller)
        self._events: list[SpanEvent] = []
        self._own = tracing.below(self._caller) if self._caller is not None and followed else None

    @property
    def context(self) -> TraceContext | None:
        """The parent of what is done for the request; None: nobody traces it."""
        return self._own or self._caller

    @property
    def exemplar(self) -> str:
        """The trace id that a metric may lead to; empty if nobody records the trace."""
        context = self.context
        return f"{context.trace_id:032x}" if context is not None and context.sampled else ""

    def event(self, name: str, attributes: Mapping[str, str | int]) -> None:
        """Note what happened to the request now, for its span."""
        if self._own is not None:
            self._events.append(SpanEvent(name, self._clock.now(), attributes))

    @contextmanager
    def stage(self, name: str) -> Generator[Note]:
        """Make a span of this name of the time spent inside."""
        attributes: dict[str, Value] = {}
        began, failure = self._clock.now(), None
        try:
            yield attributes.__setitem__
        except SpecsplitError as error:
            failure = str(error)
            raise
        finally:
            if self._own is not None:
                now = self._clock.now()
                self._tracing.span(name, began, now, parent=self._own, attributes=attributes, error=failure)

    @contextmanager
    def session(self, verifier: str) -> Generator[TraceContext | None]:
        """Make a span of one session on a verifier; gives the parent of what the verifier does for it, None if nobody traces it."""
        if self._own is None:
            yield self._caller
            return
        own, began, failure = self._tracing.below(self._own), self._clock.now(), None
        try:
            yield own
        except SpecsplitError as error:
            failure = str(error)
            raise
        finally:
            now, attributes = self._clock.now(), {"verifier": verifier}
            self._tracing.span(
                "session", began, now, parent=self._own, context=own, attributes=attributes, error=failure
            )

    def whole(self, began: float, ended: float, attributes: Callable[[], dict[str, Value]], error: str | None) -> None:
        """Make the span of the request, if it is traced here."""
        if self._own is not None:
            self._tracing.span(
                "generate",
                began,
                ended,
                parent=self._caller,
                context=self._own,
                attributes=attributes(),
                events=self._events,
                error=error,
            )
