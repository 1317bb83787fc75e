"""What people read of a verifier: metrics, spans and the trees they watch, made of what the engine says of its steps. On the event loop."""

from __future__ import annotations

from collections.abc import Callable

from specsplit.clock import Clock
from specsplit.errors import SpecsplitError
from specsplit.observe import TraceContext, Tracing
from specsplit.observe.metrics import VerifierMetrics
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit_verifier.records.step import StepResult
from specsplit_verifier.report.intervals import Intervals
from specsplit_verifier.report.spans import Spans
from specsplit_verifier.report.watching import Watching


class Telemetry:
    """Takes what the engine says, and what happens to sessions, and passes it on."""

    def __init__(self, settings: VerifierSettings, tracing: Tracing, clock: Clock, rank: int = 0) -> None:
        """`rank`: which of its group this verifier is."""
        self.metrics = VerifierMetrics(on=bool(settings.metrics_listen))
        self._intervals: Intervals | None = None
        if settings.vllm_metrics and self.metrics.on:
            self._intervals = Intervals(self.metrics.under_vllm_names(settings.model.name, rank))
        self._tracing = tracing
        self._spans = Spans(tracing, clock)
        self._readers: list[Callable[[StepResult], None]] = []
        self.watching = Watching()

    @property
    def wanted(self) -> bool:
        """True if somebody wants to know of steps now. Any thread may ask."""
        return self.metrics.on or self._spans.wanted or bool(self.watching.watched or self._readers)

    def caller(self) -> TraceContext | None:
        """The span of the call that the running task serves; None: nobody traces it."""
        return self._tracing.current()

    def submitted(self, session: int, request: DecodeRequest, caller: TraceContext | None) -> str:
        """A session begins, for a caller with this span: the `traceparent` for its drafters."""
        self.metrics.session(request.prompt_tokens)
        if self._intervals is not None:
            self._intervals.began(session)
        self.watching.began(session, request.request_id)
        return self._spans.submitted(session, request, caller)

    def subscribe(self, reader: Callable[[StepResult], None]) -> None:
        """From the next step on `reader` is called with every one."""
        self._readers.append(reader)

    def step(self, result: StepResult) -> None:
        """Make metrics, spans and what watchers see of a step that is over."""
        if self.metrics.on:
            self.metrics.step(result)
        if self._intervals is not None:
            self._intervals.step(result)
        self._spans.step(result)
        self.watching.stepped(result.sessions)
        for reader in self._readers:
            reader(result)

    def ended(self, session: int, error: SpecsplitError | None) -> None:
        """Note that a session is over; `error` says why it failed, if it did."""
        self._spans.ended(session, error)
        self.watching.ended(session)
        if self._intervals is not None:
            self._intervals.ended(session)
