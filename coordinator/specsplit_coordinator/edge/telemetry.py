"""What subscribes to the request log: metrics, the span of a whole request, and a line in the process's log when it is over."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from specsplit.observe import fields
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.requests import ChatPrompt, GenerateRequest
from specsplit.rpc import code_of
from specsplit.values import SpeculationStatistics
from specsplit_coordinator.requests.request_log import Ending, LoggedRequest, RequestLog
from specsplit_coordinator.requests.request_trace import Value

_log = logging.getLogger(__name__)


def subscribe(requests: RequestLog, metrics: CoordinatorMetrics) -> None:
    """From now on make metrics, spans and log lines of what the request log says."""
    requests.on_ended += [_write, _trace]
    if metrics.on:
        _count(requests, metrics)


def _write(request: LoggedRequest, ending: Ending) -> None:
    also: dict[str, object] = {"failovers": request.failovers} if request.failovers else {}
    also |= {"client": request.client} if request.client else {}
    also |= {"adapter": request.asked.adapter} if request.asked.adapter else {}
    if request.dones:
        reasons, verifiers = (done.reason.value for done in request.dones), (done.verifier for done in request.dones)
        extra = fields(request=request.request_id, reason=_each_once(reasons), verifier=_each_once(verifiers), **also)
        _log.info("request done", extra=extra)
    elif ending.failure is not None:
        extra = fields(request=request.request_id, code=ending.code.name, why=str(ending.failure), **also)
        _log.info("request failed", extra=extra)
    else:
        _log.info("request left by its caller", extra=fields(request=request.request_id, **also))


def _count(requests: RequestLog, metrics: CoordinatorMetrics) -> None:
    def ended(request: LoggedRequest, ending: Ending) -> None:
        metrics.used(request.client, request.asked.n, request.details.prompt_tokens + request.tokens)
        if request.reason is None:
            metrics.failed(ending.code.name)
        else:
            metrics.finished(request.reason, ending.after_s, request.trace.exemplar)

    requests.on_refused.append(lambda error: metrics.failed(code_of(error).name))
    requests.on_placed.append(lambda request, after_s: metrics.placed(after_s, request.trace.exemplar))
    requests.on_first_tokens.append(lambda request, after_s: metrics.first_token(after_s, request.trace.exemplar))
    requests.on_tokens.append(lambda request, n, after_s: metrics.intervals(after_s, n, request.trace.exemplar))
    requests.on_failover.append(metrics.failed_over)
    requests.on_resumed.append(metrics.resumed)
    requests.on_ended.append(ended)


def _trace(request: LoggedRequest, ending: Ending) -> None:
    began, error = request.arrived_at, None if ending.failure is None else str(ending.failure)
    request.trace.whole(began, began + ending.after_s, lambda: _attributes(request, ending), error)


def _attributes(request: LoggedRequest, ending: Ending) -> dict[str, Value]:
    attributes, known = _asked(request.asked), request.details
    if known.model:
        attributes |= {"gen_ai.request.model": known.model, "gen_ai.request.seed": _wire_int(known.seed)}
    if request.first_tokens_at is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = request.first_tokens_at - request.arrived_at
    if request.dones:
        return attributes | _answered(request)
    return attributes | {"error.type": ending.code.name}


def _asked(request: GenerateRequest) -> dict[str, Value]:
    sampling, max_tokens = request.sampling, request.stopping.max_tokens
    asked: dict[str, Value] = {
        "gen_ai.operation.name": "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion",
        "gen_ai.provider.name": "specsplit",
        "gen_ai.request.temperature": float(sampling.temperature),
        "gen_ai.request.top_p": float(sampling.top_p),
        "gen_ai.request.top_k": sampling.top_k,
    }
    if request.n > 1:
        asked["gen_ai.request.choice.count"] = request.n
    if request.adapter:
        asked["specsplit.adapter"] = request.adapter
    return asked if max_tokens is None else asked | {"gen_ai.request.max_tokens": max_tokens}


def _answered(request: LoggedRequest) -> dict[str, Value]:
    dones, speculation = request.dones, SpeculationStatistics.sum([done.speculation for done in request.dones])
    answered: dict[str, Value] = {
        "gen_ai.response.finish_reasons": [done.reason.value for done in dones],
        "gen_ai.response.id": request.request_id,
        "gen_ai.response.model": request.details.model,
        "gen_ai.usage.input_tokens": request.details.prompt_tokens,
        "gen_ai.usage.output_tokens": sum(done.usage.completion_tokens for done in dones),
        "specsplit.verifier": _each_once(done.verifier for done in dones),
        "specsplit.steps": speculation.steps,
        "specsplit.drafted": speculation.drafted,
        "specsplit.accepted": speculation.accepted,
        "specsplit.hits": speculation.hits,
        "specsplit.misses": speculation.misses,
        "specsplit.accept_length": float(speculation.accept_length),
    }
    if request.failovers:
        answered["specsplit.failovers"] = request.failovers
    drafters = _each_once(done.drafter for done in dones if done.drafter)
    return answered | {"specsplit.drafter": drafters} if drafters else answered


def _each_once(names: Iterable[str]) -> str:
    """Join the names of all choices into one text, each name once."""
    return ", ".join(dict.fromkeys(names))


def _wire_int(seed: int) -> int:
    """The seed as a signed 64-bit number, the only kind of integer that OTLP has."""
    return seed if seed < 2**63 else seed - 2**64
