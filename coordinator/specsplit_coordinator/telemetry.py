"""What subscribes to the request log: metrics, the span of a whole request, and a line in the process's log when it is over."""

from __future__ import annotations

import logging

from specsplit.observe import fields
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.requests import ChatPrompt, Done, GenerateRequest
from specsplit.rpc import code_of
from specsplit_coordinator.request_log import LoggedRequest, RequestLog
from specsplit_coordinator.request_trace import Value

_log = logging.getLogger(__name__)


def tell(requests: RequestLog, metrics: CoordinatorMetrics) -> None:
    """From now on make metrics, spans and log lines of what the request log says."""
    requests.on_ended += [_write, _trace]
    if metrics.on:
        _count(requests, metrics)


def _write(request: LoggedRequest, after_s: float) -> None:
    if request.done is not None:
        done = request.done
        told = fields(request=done.request_id, reason=done.reason.value, verifier=done.verifier)
        _log.info("request done", extra=told)
    elif request.failure is not None:
        told = fields(request=request.request_id, code=request.code.name, why=str(request.failure))
        _log.info("request failed", extra=told)
    else:
        _log.info("request left by its caller", extra=fields(request=request.request_id))


def _count(requests: RequestLog, metrics: CoordinatorMetrics) -> None:
    def ended(request: LoggedRequest, after_s: float) -> None:
        if request.done is None:
            metrics.failed(request.code.name)
        else:
            metrics.finished(request.done.reason, after_s, request.trace.exemplar)

    requests.on_refused.append(lambda error: metrics.failed(code_of(error).name))
    requests.on_placed.append(lambda request, after_s: metrics.placed(after_s, request.trace.exemplar))
    requests.on_first_tokens.append(lambda request, after_s: metrics.first_token(after_s, request.trace.exemplar))
    requests.on_tokens.append(lambda request, n, after_s: metrics.intervals(after_s, n, request.trace.exemplar))
    requests.on_ended.append(ended)


def _trace(request: LoggedRequest, after_s: float) -> None:
    began, error = request.arrived_at, None if request.failure is None else str(request.failure)
    request.trace.whole(began, began + after_s, lambda: _attributes(request), error)


def _attributes(request: LoggedRequest) -> dict[str, Value]:
    attributes = _asked(request.asked)
    if request.model:
        attributes |= {"gen_ai.request.model": request.model, "gen_ai.request.seed": _wire_int(request.seed)}
    if request.first_tokens_at is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = request.first_tokens_at - request.arrived_at
    if request.done is None:
        return attributes | {"error.type": request.code.name}
    return attributes | _answered(request.done, request.model)


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


def _answered(done: Done, model: str) -> dict[str, Value]:
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
