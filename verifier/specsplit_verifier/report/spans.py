"""The spans of those sessions that are traced, made after the fact of what the engine says of its steps. On the event loop.

Whether a session is traced is decided when it is submitted, and holds to its end; in how much detail, step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specsplit.clock import Clock
from specsplit.errors import SpecsplitError
from specsplit.observe import TraceContext, Tracing
from specsplit.sessions import DecodeRequest
from specsplit.values import SpeculationStatistics
from specsplit_verifier.records.step import ChunkInput, SessionResult, StepResult

_STAGES, _STEPS, _PARTS = 1, 2, 3
"""Levels from which on there are spans of each."""


@dataclass(frozen=True, slots=True)
class _Contexts:
    """The spans of one session, which are made when they are over."""

    caller: TraceContext
    """The parent of the next, which is that of the two behind it."""
    session: TraceContext
    prefill: TraceContext
    decode: TraceContext


@dataclass(slots=True)
class _Traced:
    """One session, and what has been seen of it."""

    request_id: str
    prompt_tokens: int
    earlier: int
    """Tokens behind the prompt that were generated earlier, and are read with it."""
    submitted: float
    spans: _Contexts
    chunks: int = 0
    read: float | None = None
    """When the prefill was over; None until then."""
    decoding: float | None = None
    """When the decode began; None until then."""
    committed: float | None = None
    """When the last commit was made."""
    totals: SpeculationStatistics = field(default_factory=SpeculationStatistics)


class Spans:
    """Makes the spans of every session that is traced."""

    def __init__(self, tracing: Tracing, clock: Clock) -> None:
        self._tracing = tracing
        self._clock = clock
        self._sessions: dict[int, _Traced] = {}

    @property
    def wanted(self) -> bool:
        """True while a session is traced. Any thread may ask."""
        return bool(self._sessions)

    def submitted(self, session: int, request: DecodeRequest, caller: TraceContext | None) -> str:
        """A session begins, for a caller with this span: the `traceparent` for its drafters."""
        if caller is None:
            return ""
        if not self._tracing.follows(_STAGES, caller):
            return caller.traceparent
        own, now = self._tracing.below(caller), self._clock.now()
        prefill, decode = self._tracing.below(own), self._tracing.below(own)
        self._sessions[session] = _Traced(
            request.request_id, request.prompt_tokens, request.committed, now, _Contexts(caller, own, prefill, decode)
        )
        return decode.traceparent

    def step(self, result: StepResult) -> None:
        """Make the spans of a step that is over."""
        chunks = [(traced, chunk) for chunk in result.prompts if (traced := self._sessions.get(chunk.session))]
        parts = [(traced, part) for part in result.sessions if (traced := self._sessions.get(part.session))]
        if not chunks and not parts and not (result.idle and self._sessions):
            return
        links = self._step(result) if self._tracing.wants(_STEPS) else []
        for traced, chunk in chunks:
            self._chunk(traced, chunk, result, links)
        for traced, part in parts:
            self._part(traced, part, result, links)

    def ended(self, session: int, error: SpecsplitError | None) -> None:
        """A session is over; `error` says why it failed, if it did. Again has no effect."""
        traced = self._sessions.pop(session, None)
        if traced is None:
            return
        failure, now = None if error is None else str(error), self._clock.now()
        read = self._prefilled(traced, now, failure) if traced.read is None else traced.read
        self._tracing.span(
            "session",
            traced.submitted,
            now,
            parent=traced.spans.caller,
            context=traced.spans.session,
            attributes={"request_id": traced.request_id},
            error=failure,
        )
        totals = traced.totals
        self._tracing.span(
            "decode",
            read if traced.decoding is None else traced.decoding,
            traced.committed or read,
            parent=traced.spans.session,
            context=traced.spans.decode,
            attributes={
                "request_id": traced.request_id,
                "steps": totals.steps,
                "drafted": totals.drafted,
                "accepted": totals.accepted,
                "hits": totals.hits,
                "misses": totals.misses,
            },
            error=failure,
        )

    def _step(self, result: StepResult) -> list[TraceContext]:
        """Make the span of the step itself, for others to link to."""
        context = self._tracing.batch(
            "step",
            result.began,
            result.ended,
            attributes={
                "sessions": len(result.sessions),
                "tokens": result.tokens,
                "prefill_tokens": result.prefill_tokens,
                "drafted": result.drafted,
                "accepted": result.accepted,
                "committed": result.committed,
                "forward_us": result.forward_us,
                "host_us": result.host_us,
                "waited_us": result.waited_us,
                "idle": result.idle,
            },
        )
        return [] if context is None else [context]

    def _chunk(self, traced: _Traced, chunk: ChunkInput, result: StepResult, links: Sequence[TraceContext]) -> None:
        traced.chunks += 1
        if self._tracing.wants(_PARTS):
            attributes = {"first": chunk.first, "tokens": chunk.num_tokens}
            self._tracing.span(
                "prefill_chunk",
                result.began,
                result.ended,
                parent=traced.spans.prefill,
                attributes=attributes,
                links=links,
            )
        over = traced.read is not None  # it was preempted, and is read again
        last = traced.prompt_tokens + traced.earlier - 1  # the first root
        if not over and chunk.first + chunk.num_tokens >= last:
            self._prefilled(traced, result.ended)

    def _prefilled(self, traced: _Traced, now: float, failure: str | None = None) -> float:
        """Make the span of the prefill, which is over at `now`."""
        self._tracing.span(
            "prefill",
            traced.submitted,
            now,
            parent=traced.spans.session,
            context=traced.spans.prefill,
            attributes={
                "request_id": traced.request_id,
                "prompt_tokens": traced.prompt_tokens,
                "committed": traced.earlier,
                "chunks": traced.chunks,
            },
            error=failure,
        )
        traced.read = now
        return now

    def _part(self, traced: _Traced, part: SessionResult, result: StepResult, links: Sequence[TraceContext]) -> None:
        # Where there was nothing to read, the prefill is over now.
        read = self._prefilled(traced, result.began) if traced.read is None else traced.read
        if traced.decoding is None:  # the first step that decodes may be the last that reads
            traced.decoding = min(read, result.began)
        traced.committed, traced.totals = result.ended, part.reply.speculation
        if part.held_since is not None and self._tracing.wants(_PARTS):
            self._tracing.span(
                "spec_wait",
                part.held_since,
                result.began,
                parent=traced.spans.decode,
                attributes={"step": part.reply.speculation.steps, "wait_budget_us": part.plan.wait_budget_us},
                links=links,
            )
        if self._tracing.wants(_STEPS):
            self._tracing.span(
                "spec_verify",
                result.began,
                result.ended,
                parent=traced.spans.decode,
                attributes=_verified(part, len(result.sessions)),
                links=links,
            )


def _verified(part: SessionResult, batch_size: int) -> dict[str, int | bool]:
    return {
        "step": part.reply.speculation.steps,
        "num_draft_tokens": part.drafted + 1,
        "num_correct_drafts": part.accepted,
        "accepted_tokens": part.accepted,
        "hit": part.hit is True,
        "plan.num_steps": part.shown_plan.num_steps,
        "plan.topk": part.shown_plan.topk,
        "plan.num_draft_tokens": part.shown_plan.num_draft_tokens,
        "batch_size": batch_size,
        "idle": part.drafted == 0,
    }
