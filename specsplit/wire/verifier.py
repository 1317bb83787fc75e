"""verifier.proto: one session between coordinator and verifier."""

from __future__ import annotations

from collections.abc import Iterable

from specsplit.errors import InvalidRequest
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Preempted, Tokens
from specsplit.settings.address import check_dialable
from specsplit.v1 import verifier_pb2 as pb
from specsplit.values import Endpoint, PromptLogprobs
from specsplit.wire import common
from specsplit.wire.checks import check
from specsplit.wire.limits import MAX_TOKENS, check_count
from specsplit.wire.logprobs import logprobs_from_wire, logprobs_to_wire, prompt_from_wire, prompt_to_wire
from specsplit.wire.no_drafts import no_drafts_from_wire, no_drafts_to_wire


def endpoint_to_wire(endpoint: Endpoint) -> pb.DrafterAddress:
    return pb.DrafterAddress(
        member_id=endpoint.member_id,
        address=endpoint.address,
        features=common.need_to_wire(endpoint.features) if endpoint.features else None,
        weights_version=endpoint.weights_version,
    )


def endpoint_from_wire(message: pb.DrafterAddress) -> Endpoint:
    """Raises InvalidRequest for an address that is not host:port."""
    check_dialable("drafter.address", message.address)
    need = common.need_from_wire(message.features)
    return Endpoint(message.member_id, message.address, need, message.weights_version)


def decode_to_wire(request: DecodeRequest) -> pb.DecodeRequest:
    message = pb.DecodeRequest(
        request_id=request.request_id,
        token_ids=request.tokens,
        sampling=common.sampling_to_wire(request.sampling),
        stopping=common.stopping_to_wire(request.stopping),
        plan=common.plan_to_wire(request.plan),
        drafter=endpoint_to_wire(request.drafter) if request.drafter else None,
        logprobs=request.logprobs,
        any_drafter=request.any_drafter,
        committed=request.committed,
        scope=request.scope,
        stream_interval=request.stream_interval,
        prompt_logprobs=request.prompt_logprobs,
        adapter=request.adapter,
    )
    common.constraint_into(message.constraint, request.constraint)
    return message


def decode_from_wire(message: pb.DecodeRequest, vocab_size: int, max_context: int = MAX_TOKENS) -> DecodeRequest:
    """Raises InvalidRequest for a prompt that is empty or exceeds the context, a token outside the vocabulary, or a value out of range
    or too long, or more committed tokens than there can be.
    """
    check(message)
    check_count("token_ids", message.token_ids, max_context)
    if not message.token_ids:
        raise InvalidRequest("token_ids", "is empty, expected a prompt of at least one token")
    common.check_tokens("token_ids", message.token_ids, vocab_size)
    stopping = common.stopping_from_wire(message.stopping)
    common.check_tokens("stopping.stop_token_ids", stopping.stop_token_ids, vocab_size)
    sampling = common.sampling_from_wire(message.sampling)
    common.check_bias("sampling.logit_bias", sampling, vocab_size)
    return DecodeRequest(
        message.request_id,
        tuple(message.token_ids),
        sampling,
        stopping,
        common.plan_from_wire(message.plan),
        endpoint_from_wire(message.drafter) if message.HasField("drafter") else None,
        message.logprobs if message.HasField("logprobs") else None,
        message.any_drafter,
        message.committed,
        message.scope,
        message.stream_interval or 1,
        common.constraint_from_wire(message.constraint),
        message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        message.adapter,
    )


def decode_response(event: DecodeEvent, earlier: Iterable[Tokens] = ()) -> pb.DecodeResponse:
    """Write one event, and tokens before it that were held back, as one message."""
    message = pb.DecodeResponse()
    response_into(message, event, earlier)
    return message


def response_into(message: pb.DecodeResponse, event: DecodeEvent, earlier: Iterable[Tokens]) -> None:
    """Write an event, and tokens before it that were held back, into a message that may be inside another."""
    for tokens in earlier:
        _tokens_into(message.earlier.add(), tokens)
    if isinstance(event, Tokens):
        _tokens_into(message.tokens, event)
    elif isinstance(event, Preempted):
        message.preempted.SetInParent()
    elif isinstance(event, PromptLogprobs):
        message.MergeFrom(pb.DecodeResponse(prompt=prompt_to_wire(event)))
    else:
        message.finished.CopyFrom(_finished_to_wire(event))


def _tokens_into(message: pb.TokensEvent, event: Tokens) -> None:
    """Write tokens in their place, which takes half the time of a message that is copied there."""
    message.token_ids.extend(event.tokens)
    message.num_correct_drafts = event.num_correct_drafts
    common.speculation_into(message.speculation, event.speculation)
    if (logprobs := logprobs_to_wire(event.logprobs)) is not None:
        message.logprobs.CopyFrom(logprobs)
    message.cached_prompt_tokens = event.cached_prompt_tokens
    if (no_drafts := no_drafts_to_wire(event.no_drafts)) is not None:
        message.no_drafts.CopyFrom(no_drafts)


def _finished_to_wire(event: Finished) -> pb.FinishedEvent:
    return pb.FinishedEvent(
        reason=common.reason_to_wire(event.reason),
        stop_token_id=event.stop_token,
        usage=common.usage_to_wire(event.usage),
        speculation=common.speculation_to_wire(event.speculation),
        no_drafts=no_drafts_to_wire(event.no_drafts),
    )


def decode_events(message: pb.DecodeResponse) -> list[DecodeEvent]:
    """The events of one message, in order; the last is what it was sent for.

    Raises InvalidRequest if that is absent or one is too long, Incompatible if the message is none at all.
    """
    check(message)
    return events_within(message)


def events_within(message: pb.DecodeResponse) -> list[DecodeEvent]:
    """Read the events of a message that has been held to the limits, as `decode_events` does."""
    earlier = message.earlier
    events: list[DecodeEvent] = [_tokens_from_wire("earlier", each) for each in earlier] if earlier else []
    match message.WhichOneof("event"):
        case "tokens":
            events.append(_tokens_from_wire("tokens", message.tokens))
        case "finished":
            events.append(_finished_from_wire(message.finished))
        case "preempted":
            events.append(Preempted())
        case "prompt":
            events.append(prompt_from_wire("prompt", message.prompt))
        case _:
            raise InvalidRequest("event", "is absent, expected prompt, tokens, preempted or finished")
    return events


def _tokens_from_wire(field: str, message: pb.TokensEvent) -> Tokens:
    if message.num_correct_drafts > len(message.token_ids):
        raise InvalidRequest(
            f"{field}.num_correct_drafts", f"is {message.num_correct_drafts}, with {len(message.token_ids)} tokens"
        )
    return Tokens(
        tuple(message.token_ids),
        message.num_correct_drafts,
        common.speculation_from_wire(message.speculation),
        logprobs_from_wire(f"{field}.logprobs", message.logprobs, message.token_ids)
        if message.HasField("logprobs")
        else (),
        message.cached_prompt_tokens,
        no_drafts_from_wire(f"{field}.no_drafts", message.no_drafts) if message.HasField("no_drafts") else None,
    )


def _finished_from_wire(message: pb.FinishedEvent) -> Finished:
    return Finished(
        common.reason_from_wire(message.reason),
        message.stop_token_id if message.HasField("stop_token_id") else None,
        common.usage_from_wire(message.usage),
        common.speculation_from_wire(message.speculation),
        no_drafts_from_wire("finished.no_drafts", message.no_drafts),
    )
