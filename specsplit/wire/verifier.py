"""verifier.proto: one session between coordinator and verifier."""

from __future__ import annotations

from specsplit.errors import InvalidRequest
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Preempted, Tokens
from specsplit.settings.address import check_dialable
from specsplit.v1 import verifier_pb2 as pb
from specsplit.values import Endpoint
from specsplit.wire import common
from specsplit.wire.checks import check
from specsplit.wire.limits import MAX_TOKENS, check_count
from specsplit.wire.no_drafts import no_drafts_from_wire, no_drafts_to_wire


def endpoint_to_wire(endpoint: Endpoint) -> pb.DrafterAddress:
    return pb.DrafterAddress(
        member_id=endpoint.member_id,
        address=endpoint.address,
        features=common.need_to_wire(endpoint.features) if endpoint.features else None,
    )


def endpoint_from_wire(message: pb.DrafterAddress) -> Endpoint:
    """Raises InvalidRequest for an address that is not host:port."""
    check_dialable("drafter.address", message.address)
    return Endpoint(message.member_id, message.address, common.need_from_wire(message.features))


def decode_to_wire(request: DecodeRequest) -> pb.DecodeRequest:
    return pb.DecodeRequest(
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
    )


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
    )


def decode_response(event: DecodeEvent) -> pb.DecodeResponse:
    """Write one event as one message."""
    if isinstance(event, Tokens):
        return pb.DecodeResponse(
            tokens=pb.TokensEvent(
                token_ids=event.tokens,
                num_correct_drafts=event.num_correct_drafts,
                speculation=common.speculation_to_wire(event.speculation),
                logprobs=common.logprobs_to_wire(event.logprobs),
                cached_prompt_tokens=event.cached_prompt_tokens,
                no_drafts=no_drafts_to_wire(event.no_drafts),
            )
        )
    if isinstance(event, Preempted):
        return pb.DecodeResponse(preempted=pb.PreemptedEvent())
    return pb.DecodeResponse(
        finished=pb.FinishedEvent(
            reason=common.reason_to_wire(event.reason),
            stop_token_id=event.stop_token,
            usage=common.usage_to_wire(event.usage),
            speculation=common.speculation_to_wire(event.speculation),
            no_drafts=no_drafts_to_wire(event.no_drafts),
        )
    )


def decode_event(message: pb.DecodeResponse) -> DecodeEvent:
    """The event of one message. Raises InvalidRequest if there is none or it is too long, Incompatible if the message is none at all."""
    check(message)
    match message.WhichOneof("event"):
        case "tokens":
            tokens = message.tokens
            if tokens.num_correct_drafts > len(tokens.token_ids):
                raise InvalidRequest(
                    "tokens.num_correct_drafts", f"is {tokens.num_correct_drafts}, with {len(tokens.token_ids)} tokens"
                )
            return Tokens(
                tuple(tokens.token_ids),
                tokens.num_correct_drafts,
                common.speculation_from_wire(tokens.speculation),
                common.logprobs_from_wire("tokens.logprobs", tokens.logprobs, tokens.token_ids),
                tokens.cached_prompt_tokens,
                no_drafts_from_wire("tokens.no_drafts", tokens.no_drafts) if tokens.HasField("no_drafts") else None,
            )
        case "finished":
            finished = message.finished
            return Finished(
                common.reason_from_wire(finished.reason),
                finished.stop_token_id if finished.HasField("stop_token_id") else None,
                common.usage_from_wire(finished.usage),
                common.speculation_from_wire(finished.speculation),
                no_drafts_from_wire("finished.no_drafts", finished.no_drafts),
            )
        case "preempted":
            return Preempted()
        case _:
            raise InvalidRequest("event", "is absent, expected tokens, preempted or finished")
