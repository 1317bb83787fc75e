"""What is told of one request: to the metrics, to the ledger, a line in the log when it is over, and its spans if it is traced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from specsplit.clock import Clock
from specsplit.errors import SpecsplitError
from specsplit.observe import TraceContext, Tracing, fields
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.requests import ChatPrompt, Delta, Done, GenerateRequest
from specsplit.rpc import code_of
from specsplit.sessions import Finished, Tokens
from specsplit.values import Sampling
from specsplit_coordinator.admission import Lease
from specsplit_coordinator.ledger import Ledger

_log = logging.getLogger(__name__)

Value = str | int | float | list[str]
Note = Callable[[str, Value], None]
"""Takes an attribute of a span that is not over yet."""


@dataclass(frozen=True)
class Books:
    """Where accounts are kept."""

    tracing: Tracing
    metrics: CoordinatorMetrics
    ledger: Ledger
    clock: Clock

    def open(self, request: GenerateRequest, remaining_s: Callable[[], float | None]) -> Account:
        """A request came. To be asked in the task of its call; `remaining_s` tells the time left to the caller (None: no limit)."""
        return Account(request, self, remaining_s)

    def refused(self, error: SpecsplitError) -> None:
        """A request came that could not even be read."""
        self.metrics.failed(code_of(error).name)


class Account:
    """Of one request, from when it came. Whatever happens to it, `close` comes last."""

    def __init__(self, request: GenerateRequest, books: Books, remaining_s: Callable[[], float | None]) -> None:
        """Made in the task of the call, whose span is the parent of all."""
        self._tracing = tracing = books.tracing
        self._clock = books.clock
        self._ledger = books.ledger
        self._remaining_s = remaining_s
        self._began = self._clock.now()
        self._parent = tracing.current()
        self._followed = tracing.follows(1, self._parent)
        self._own = tracing.below(self._parent) if self._followed and self._parent is not None else None
        self._attributes: dict[str, Value] = _asked(request) if self._followed else {}
        self._request_id = request.request_id
        self._times = books.metrics.request(self._began, _trace_id(self.context))
        self._entry = self._ledger.open(request.request_id, self._began)
        self._done: Done | None = None
        self._failure: Exception | None = None
        self._first_token_at: float | None = None
        self._closed = False

    @property
    def context(self) -> TraceContext | None:
        """What belongs to the request belongs below this; None: nobody traces it."""
        return self._own or self._parent

    @contextmanager
    def stage(self, name: str) -> Generator[Note]:
        """Time in here is a span of this name below the request's own."""
        attributes: dict[str, Value] = {}
        began, failure = self._clock.now(), None
        try:
            yield attributes.__setitem__
        except SpecsplitError as error:
            failure = str(error)
            raise
        finally:
            if self._followed:
                now = self._clock.now()
                self._tracing.span(name, began, now, parent=self._own, attributes=attributes, error=failure)

    def prepared(self, request_id: str, model: str, sampling: Sampling, prompt_tokens: int) -> None:
        """The request has its name, its model, its seed and its tokens."""
        self._request_id = self._entry.request_id = request_id
        self._entry.prompt_tokens = prompt_tokens
        if self._followed:
            self._attributes |= {"gen_ai.request.model": model, "gen_ai.request.seed": _wire_int(sampling.seed)}

    def placed(self, lease: Lease) -> None:
        """It has a place on a verifier, and a drafter or none; on another verifier if the one before failed."""
        self._times.placed(self._clock.now())
        self._ledger.placed(self._entry, lease.verifier, lease.drafter, self._clock.now())

    def received(self, event: Tokens | Finished) -> None:
        """This came from the verifier."""
        if isinstance(event, Tokens):
            self._times.tokens(len(event.tokens), self._clock.now())
        self._ledger.received(self._entry, event)

    def streamed(self, event: Delta | Done) -> None:
        """This goes to the caller."""
        if isinstance(event, Done):
            self._done = event
        elif self._first_token_at is None and event.tokens:
            self._first_token_at = self._clock.now()

    def failed(self, error: Exception) -> None:
        """The caller gets this instead of an end."""
        self._failure = error

    def close(self) -> None:
        """The request is over; again has no effect."""
        if self._closed:
            return
        self._closed = True
        self._write()
        self._count()
        if self._followed and self._parent is not None:
            self._tracing.span(
                "generate",
                self._began,
                self._clock.now(),
                parent=self._parent,
                context=self._own,
                attributes=self._attributes | self._outcome(),
                error=None if self._failure is None else str(self._failure),
            )

    def _write(self) -> None:
        if self._done is not None:
            done = self._done
            values = fields(request=done.request_id, reason=done.reason.value, verifier=done.verifier)
            _log.info("request done", extra=values)
        elif self._failure is not None:
            values = fields(request=self._request_id, code=self._code().name, why=str(self._failure))
            _log.info("request failed", extra=values)
        else:
            _log.info("request left by its caller", extra=fields(request=self._request_id))

    def _count(self) -> None:
        now = self._clock.now()
        if self._done is not None:
            self._times.finished(self._done.reason, now)
            self._ledger.close(self._entry, self._done.reason.value, now)
        else:
            code = self._code().name.lower()
            self._times.failed(code)
            self._ledger.close(self._entry, code, now)

    def _code(self) -> grpc.StatusCode:
        """The status that stands for an end other than Done; the caller sees it unless it is gone."""
        if isinstance(self._failure, SpecsplitError):
            return code_of(self._failure)
        if self._failure is not None:
            return grpc.StatusCode.INTERNAL
        remaining_s = self._remaining_s()
        late = remaining_s is not None and remaining_s <= 0
        return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED

    def _outcome(self) -> dict[str, Value]:
        outcome: dict[str, Value] = {}
        if self._first_token_at is not None:
            outcome["gen_ai.response.time_to_first_chunk"] = self._first_token_at - self._began
        if self._done is None:
            return outcome | {"error.type": self._code().name}
        return outcome | _answered(self._done, self._attributes["gen_ai.request.model"])


def _asked(request: GenerateRequest) -> dict[str, Value]:
    sampling, max_tokens = request.sampling, request.stopping.max_tokens
    asked: dict[str, Value] = {
        "gen_ai.operation.name": "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion",
        "gen_ai.provider.name": "specsplit",
        "gen_ai.request.temperature": float(sampling.temperature),
        "gen_ai.request.top_p": float(sampling.top_p),
        "gen_ai.request.top_k": sampling.top_k,
    }
    return asked if max_tokens is None else asked | {"gen_ai.request.max_tokens": max_tokens}


def _answered(done: Done, model: Value) -> dict[str, Value]:
    speculation = done.speculation
    answered: dict[str, Value] = {
        "gen_ai.response.finish_reasons": [done.reason.value],
        "gen_ai.response.id": done.request_id,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": done.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": done.usage.completion_tokens,
        "specsplit.verifier": done.verifier,
        "specsplit.steps": speculation.steps,
        "specsplit.drafted": speculation.drafted,
        "specsplit.accepted": speculation.accepted,
        "specsplit.hits": speculation.hits,
        "specsplit.misses": speculation.misses,
        "specsplit.accept_length": float(speculation.accept_length),
    }
    return answered | {"specsplit.drafter": done.drafter} if done.drafter else answered


def _wire_int(seed: int) -> int:
    """The seed as a signed 64-bit number, the only kind of integer that OTLP has."""
    return seed if seed < 2**63 else seed - 2**64


def _trace_id(context: TraceContext | None) -> str:
    """What an exemplar leads to; empty if nobody records the trace."""
    return f"{context.trace_id:032x}" if context is not None and context.sampled else ""
