"""Which field of a request the wire cannot carry: protobuf's "Value out of range" names none. Looked for once it has been said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import index

from specsplit.errors import InvalidRequest
from specsplit.requests import ChatPrompt, GenerateRequest, TextPrompt, TokenPrompt
from specsplit.values.bounds import UINT32_MAX


def misfit(request: GenerateRequest, otherwise: str) -> InvalidRequest:
    """What is wrong with the first field that does not fit; `otherwise` is said of the request if all seem to."""
    for field, numbers in _numbers(request):
        for number in numbers:
            if not _fits(number):
                return InvalidRequest(
                    field, f"has {number!r:.80}, expected whole numbers from 0 to {UINT32_MAX:,} (32 bits unsigned)"
                )
    for field, texts in _texts(request):
        if not all(map(_is_encodable, texts)):
            return InvalidRequest(field, "has half a surrogate pair, which UTF-8 cannot carry; leave it out")
    return InvalidRequest("request", otherwise)


def _numbers(request: GenerateRequest) -> Iterator[tuple[str, Iterable[object]]]:
    """Every field of whole numbers, by the name that a caller gives it."""
    sampling, stopping = request.sampling, request.stopping
    yield "max_tokens", () if stopping.max_tokens is None else (stopping.max_tokens,)
    yield "min_tokens", (stopping.min_tokens,)
    yield "top_k", (sampling.top_k,)
    yield "logit_bias", (token for token, _ in sampling.logit_bias)
    yield "stop_token_ids", stopping.stop_token_ids
    yield "prompt", request.prompt.tokens if isinstance(request.prompt, TokenPrompt) else ()
    yield "resume_from", request.resume_from


def _texts(request: GenerateRequest) -> Iterator[tuple[str, Iterable[str]]]:
    """Every field of texts, likewise."""
    match request.prompt:
        case TextPrompt(text):
            yield "prompt", (text,)
        case ChatPrompt(messages):
            yield "prompt", (part for each in messages for part in (each.role, each.content))
        case TokenPrompt():
            pass
    yield "stop", request.stop
    yield "drafter", (request.drafter or "",)
    yield "request_id", (request.request_id,)
    yield "adapter", (request.adapter,)
    if request.constraint is not None:
        yield request.constraint.kind, (request.constraint.text, *request.constraint.choices)


def _fits(number: object) -> bool:
    try:
        return 0 <= index(number) <= UINT32_MAX  # pyright: ignore[reportArgumentType] (what is no number is what is looked for)
    except TypeError:
        return False


def _is_encodable(text: str) -> bool:
    return text.isascii() or text.encode(errors="replace").decode() == text
