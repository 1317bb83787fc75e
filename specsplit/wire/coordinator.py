"""coordinator.proto: a program and the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, cast

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from specsplit.errors import InvalidRequest
from specsplit.membership import Cluster, Member, PlanInForce, TracingInForce
from specsplit.requests import (
    ChatMessage,
    ChatPrompt,
    Delta,
    Done,
    GenerateEvent,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from specsplit.v1 import coordinator_pb2 as pb
from specsplit.values import Control, ModelInfo, Plan, PlanChanges, TraceChanges
from specsplit.wire import common, groups, hosts, speculation
from specsplit.wire.checks import check
from specsplit.wire.logprobs import logprobs_from_wire, logprobs_to_wire, prompt_from_wire, prompt_to_wire
from specsplit.wire.misfits import misfit
from specsplit.wire.no_drafts import no_drafts_from_wire, no_drafts_to_wire

GenerateMessage: TypeAlias = pb.GenerateRequest
GenerateEventMessage: TypeAlias = pb.GenerateResponse
ModelInfoQuestion: TypeAlias = pb.GetModelInfoRequest
ModelInfoMessage: TypeAlias = pb.GetModelInfoResponse
ClusterQuestion: TypeAlias = pb.GetClusterRequest
ClusterMessage: TypeAlias = pb.GetClusterResponse
PlanQuestion: TypeAlias = pb.GetPlanRequest
PlanInForceMessage: TypeAlias = pb.GetPlanResponse
TracingQuestion: TypeAlias = pb.GetTracingRequest
TracingInForceMessage: TypeAlias = pb.GetTracingResponse
PlanMessage: TypeAlias = pb.SetPlanRequest
PlanSetMessage: TypeAlias = pb.SetPlanResponse
TracingMessage: TypeAlias = pb.SetTracingRequest
TracingSetMessage: TypeAlias = pb.SetTracingResponse


def generate_to_wire(request: GenerateRequest) -> pb.GenerateRequest:
    """The seed is left out unless the request is seeded.

    Raises InvalidRequest, naming the field, for a number or a text that the wire cannot carry.
    """
    try:
        return _generate_to_wire(request)
    except (ValueError, TypeError) as error:  # protobuf's answer to what it cannot hold, which names no field
        raise misfit(request, str(error)) from error


def _generate_to_wire(request: GenerateRequest) -> pb.GenerateRequest:
    message = pb.GenerateRequest(
        request_id=request.request_id,
        sampling=common.sampling_to_wire(request.sampling),
        stopping=common.stopping_to_wire(request.stopping),
        stop=request.stop,
        drafter=request.drafter,
        plan=common.plan_to_wire(request.plan),
        logprobs=request.logprobs,
        n=request.n,
        resume_from=request.resume_from,
        priority=request.priority,
        stream_interval=request.stream_interval,
        include_stop_str_in_output=request.include_stop_str_in_output,
        prompt_logprobs=request.prompt_logprobs,
        adapter=request.adapter,
    )
    if not request.seeded:
        message.sampling.ClearField("seed")
    _prompt_to_wire(request.prompt, message)
    common.constraint_into(message, request.constraint)
    return message


def generate_from_wire(message: pb.GenerateRequest) -> GenerateRequest:
    """Raises InvalidRequest for no prompt, an unknown field or a value out of range or too long."""
    check(message)
    refuse_unknown(message)
    return GenerateRequest(
        prompt=_prompt_from_wire(message),
        request_id=message.request_id,
        sampling=common.sampling_from_wire(message.sampling, draw_seed=0),
        seeded=message.sampling.HasField("seed"),
        stopping=common.stopping_from_wire(message.stopping),
        stop=tuple(message.stop),
        drafter=message.drafter if message.HasField("drafter") else None,
        plan=common.plan_from_wire(message.plan),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        n=message.n if message.HasField("n") else 1,
        resume_from=tuple(message.resume_from),
        priority=message.priority,
        stream_interval=message.stream_interval or 1,
        include_stop_str_in_output=message.include_stop_str_in_output,
        constraint=common.constraint_from_wire(message),
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        adapter=message.adapter,
    )


def _prompt_to_wire(prompt: Prompt, message: pb.GenerateRequest) -> None:
    match prompt:
        case TextPrompt():
            message.text = prompt.text
        case ChatPrompt():
            messages = [pb.ChatMessage(role=each.role, content=each.content) for each in prompt.messages]
            message.chat.CopyFrom(pb.ChatPrompt(messages=messages))
        case TokenPrompt():
            message.tokens.CopyFrom(pb.TokenPrompt(token_ids=prompt.tokens))


def _prompt_from_wire(message: pb.GenerateRequest) -> Prompt:
    match message.WhichOneof("prompt"):
        case "text":
            return TextPrompt(message.text)
        case "chat":
            return ChatPrompt(tuple(ChatMessage(each.role, each.content) for each in message.chat.messages))
        case "tokens":
            return TokenPrompt(tuple(message.tokens.token_ids))
        case _:
            raise InvalidRequest("prompt", "is absent, expected text, chat or tokens")


def generate_response(event: GenerateEvent, earlier: Iterable[Delta] = ()) -> pb.GenerateResponse:
    """Write one event, and deltas before it that were held back, as one message."""
    message = pb.GenerateResponse()
    for delta in earlier:
        _delta_into(message.earlier.add(), delta)
    if isinstance(event, Done):
        message.done.CopyFrom(_done_to_wire(event))
    else:
        _delta_into(message.delta, event)
    return message


def _delta_into(message: pb.DeltaEvent, delta: Delta) -> None:
    """Write a delta in its place, which takes half the time of a message that is copied there."""
    message.SetInParent()
    message.text = delta.text
    message.token_ids.extend(delta.tokens)
    if delta.num_correct_drafts:
        message.num_correct_drafts = delta.num_correct_drafts
    if delta.index:
        message.index = delta.index
    if (logprobs := logprobs_to_wire(delta.logprobs)) is not None:
        message.logprobs.CopyFrom(logprobs)
    if (prompt := prompt_to_wire(delta.prompt)) is not None:
        message.prompt.CopyFrom(prompt)


def generate_events(message: pb.GenerateResponse) -> list[GenerateEvent]:
    """The events of one message, in order; the last is what it was sent for.

    Raises InvalidRequest if that is absent or one is too long, Incompatible if the message is none at all.
    """
    check(message)
    events: list[GenerateEvent] = [_delta_from_wire("earlier", each) for each in message.earlier]
    match message.WhichOneof("event"):
        case "delta":
            events.append(_delta_from_wire("delta", message.delta))
        case "done":
            events.append(_done_from_wire(message.done))
        case _:
            raise InvalidRequest("event", "is absent, expected delta or done")
    return events


def _delta_from_wire(field: str, delta: pb.DeltaEvent) -> Delta:
    logprobs = logprobs_from_wire(f"{field}.logprobs", delta.logprobs, delta.token_ids)
    prompt = prompt_from_wire(f"{field}.prompt", delta.prompt) if delta.HasField("prompt") else None
    return Delta(delta.text, tuple(delta.token_ids), delta.num_correct_drafts, logprobs, delta.index, prompt)


def _done_to_wire(done: Done) -> pb.DoneEvent:
    return pb.DoneEvent(
        request_id=done.request_id,
        reason=common.reason_to_wire(done.reason),
        stop_string=done.matched_stop if isinstance(done.matched_stop, str) else None,
        stop_token_id=done.matched_stop if isinstance(done.matched_stop, int) else None,
        usage=common.usage_to_wire(done.usage),
        speculation=common.speculation_to_wire(done.speculation),
        seed=done.seed,
        verifier=done.verifier,
        drafter=done.drafter,
        index=done.index,
        no_drafts=no_drafts_to_wire(done.no_drafts),
    )


def _done_from_wire(message: pb.DoneEvent) -> Done:
    which = message.WhichOneof("matched_stop")
    return Done(
        request_id=message.request_id,
        reason=common.reason_from_wire(message.reason),
        matched_stop=None
        if which is None
        else message.stop_string
        if which == "stop_string"
        else message.stop_token_id,
        usage=common.usage_from_wire(message.usage),
        speculation=common.speculation_from_wire(message.speculation),
        seed=message.seed,
        verifier=message.verifier,
        drafter=message.drafter,
        index=message.index,
        no_drafts=no_drafts_from_wire("done.no_drafts", message.no_drafts),
    )


def model_info_request() -> pb.GetModelInfoRequest:
    return pb.GetModelInfoRequest()


def model_info_to_wire(info: ModelInfo) -> pb.GetModelInfoResponse:
    return pb.GetModelInfoResponse(model=common.model_to_wire(info))


def model_info_from_wire(message: pb.GetModelInfoResponse) -> ModelInfo:
    """Raises InvalidRequest for an empty vocabulary or context, or a name that is too long, Incompatible for what is no answer at all."""
    check(message)
    return common.model_from_wire(message.model)


def cluster_request() -> pb.GetClusterRequest:
    return pb.GetClusterRequest()


def cluster_to_wire(cluster: Cluster) -> pb.GetClusterResponse:
    members = [_member_to_wire(member) for member in cluster.members]
    return pb.GetClusterResponse(**common.fields_of(cluster, members=members))


def cluster_from_wire(message: pb.GetClusterResponse) -> Cluster:
    """Raises InvalidRequest for a member without a role, or what is too long, Incompatible for what is no answer at all."""
    check(message)
    members = tuple(_member_from_wire(member) for member in message.members)
    return Cluster(
        members=members,
        queued=message.queued,
        running=message.running,
        failovers=message.failovers,
        preemptions=message.preemptions,
        build=message.build,
        coordinators=message.coordinators,
        quotas=message.quotas,
    )


def plan_request() -> pb.GetPlanRequest:
    return pb.GetPlanRequest()


def plan_in_force_to_wire(in_force: PlanInForce) -> pb.GetPlanResponse:
    plan, control = common.plan_to_wire(in_force.changes), speculation.control_to_wire(in_force.control)
    return pb.GetPlanResponse(told=in_force.members, plan=plan, control=control)


def set_plan_to_wire(changes: PlanChanges, control: Control, reset: bool) -> pb.SetPlanRequest:
    """Raises InvalidRequest for a number that the wire cannot carry."""
    try:
        wanted = speculation.control_to_wire(control)
        return pb.SetPlanRequest(plan=common.plan_to_wire(changes), control=wanted, reset=reset)
    except (ValueError, TypeError) as error:
        raise InvalidRequest("plan", str(error)) from error


def set_plan_from_wire(message: pb.SetPlanRequest) -> tuple[PlanChanges, Control, bool]:
    """The changes, who is to decide about the rest, and whether earlier changes are undone first.

    Raises InvalidRequest for an unknown field, an unknown controller, or a bound out of range.
    """
    check(message)
    refuse_unknown(message)
    return common.plan_from_wire(message.plan), speculation.control_from_wire(message.control), message.reset


def plan_set_to_wire(in_force: PlanInForce) -> pb.SetPlanResponse:
    plan, control = common.plan_to_wire(in_force.changes), speculation.control_to_wire(in_force.control)
    return pb.SetPlanResponse(told=in_force.members, plan=plan, control=control)


def plan_in_force_from_wire(message: pb.SetPlanResponse | pb.GetPlanResponse) -> PlanInForce:
    """Raises InvalidRequest for a controller that this build does not know, Incompatible for what is no answer at all."""
    check(message)
    return PlanInForce(
        message.told, common.plan_from_wire(message.plan), speculation.control_from_wire(message.control)
    )


def tracing_request() -> pb.GetTracingRequest:
    return pb.GetTracingRequest()


def tracing_in_force_to_wire(in_force: TracingInForce) -> pb.GetTracingResponse:
    return pb.GetTracingResponse(told=in_force.members, tracing=common.tracing_to_wire(in_force.changes))


def set_tracing_to_wire(changes: TraceChanges, reset: bool) -> pb.SetTracingRequest:
    """Raises InvalidRequest for a number that the wire cannot carry."""
    try:
        return pb.SetTracingRequest(tracing=common.tracing_to_wire(changes), reset=reset)
    except (ValueError, TypeError) as error:
        raise InvalidRequest("tracing", str(error)) from error


def set_tracing_from_wire(message: pb.SetTracingRequest) -> tuple[TraceChanges, bool]:
    """The changes, and whether earlier ones are undone first. Raises InvalidRequest for an unknown field or too many modules."""
    check(message)
    refuse_unknown(message)
    return common.tracing_from_wire(message.tracing), message.reset


def tracing_set_to_wire(in_force: TracingInForce) -> pb.SetTracingResponse:
    return pb.SetTracingResponse(told=in_force.members, tracing=common.tracing_to_wire(in_force.changes))


def tracing_in_force_from_wire(message: pb.SetTracingResponse | pb.GetTracingResponse) -> TracingInForce:
    """Raises InvalidRequest for too many modules, Incompatible for what is no answer at all."""
    check(message)
    return TracingInForce(message.told, common.tracing_from_wire(message.tracing))


def _member_to_wire(member: Member) -> pb.Member:
    return pb.Member(
        member_id=member.member_id,
        address=member.address,
        verifier=common.model_to_wire(member.role) if isinstance(member.role, ModelInfo) else None,
        drafter=None if isinstance(member.role, ModelInfo) else common.drafter_to_wire(member.role),
        load=common.load_to_wire(member.load),
        draining=member.draining,
        silent_ms=member.silent_ms,
        max_sessions=member.max_sessions,
        plan=None if member.plan is None else common.plan_to_wire(member.plan),
        speculation=None if member.speculation is None else speculation.report_to_wire(member.speculation),
        group=groups.rank_to_wire(member.group),
        wave=groups.wave_to_wire(member.wave),
        build=member.build,
        host=hosts.host_to_wire(member.host),
        weights_version=member.weights_version,
    )


def _member_from_wire(message: pb.Member) -> Member:
    return Member(
        member_id=message.member_id,
        address=message.address,
        role=common.role_from_wire(message, "member"),
        max_sessions=message.max_sessions,
        load=common.load_from_wire(message.load),
        draining=message.draining,
        silent_ms=message.silent_ms,
        plan=common.plan_from_wire(message.plan).over(Plan()) if message.HasField("plan") else None,
        speculation=speculation.report_from_wire(message.speculation) if message.HasField("speculation") else None,
        group=groups.rank_from_wire(message.group) if message.HasField("group") else None,
        wave=groups.wave_from_wire(message.wave) if message.HasField("wave") else None,
        build=message.build,
        host=hosts.host_from_wire(message.host),
        weights_version=message.weights_version,
    )


def refuse_unknown(message: Message, path: str = "") -> None:
    """Raise InvalidRequest, naming the number of the field, if `message` or one inside it holds an unknown field."""
    for field in UnknownFieldSet(message):
        where = path.removesuffix(".") or "request"
        raise InvalidRequest(where, f"field number {field.field_number} is unknown to this version of specsplit")
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        inner = [value] if isinstance(value, Message) else cast("Iterable[Message]", value)
        for part in inner:
            refuse_unknown(part, f"{path}{descriptor.name}.")
