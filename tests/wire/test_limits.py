"""Every list and every text of every message has a limit, and whoever reads the message holds it to that first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import common_pb2 as gateway_pb2
from smg_grpc_proto.generated import vllm_engine_pb2

from specsplit.draft_events import Open
from specsplit.errors import Incompatible, InvalidRequest
from specsplit.features import FeatureFormat, FeatureLayout, FeatureNeed
from specsplit.membership import Cluster, Member, Roster
from specsplit.requests import ChatMessage, ChatPrompt, GenerateRequest
from specsplit.v1 import cluster_pb2, common_pb2, coordinator_pb2, drafter_pb2, verifier_pb2
from specsplit.values import MAX_BIASES, Endpoint, Host, Load, ModelInfo, Plan, Sampling, Vocabulary
from specsplit.values.host import MAX_CORE_RANGES
from specsplit.wire import cluster, coordinator, drafter, sessions, verifier, vllm, vllm_operations, watching, weights
from specsplit.wire.checks import check
from specsplit.wire.limits import (
    LIMITS,
    MAX_CHAT_MESSAGES,
    MAX_EVENTS,
    MAX_MALFORMED_EVENTS,
    MAX_MEMBERS,
    MAX_NAME,
    Limit,
)
from specsplit.wire.packing import packed
from specsplit.wire.reading import request_reader, response_reader
from specsplit.wire.scan import MAX_RECORDS, SCANNED_BYTES, NotAMessage, look

FILES = [file.DESCRIPTOR for file in (cluster_pb2, common_pb2, coordinator_pb2, drafter_pb2, verifier_pb2)]
ENGINE = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"]
TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def first_error(events: Sequence[tuple[int, object]]) -> None:
    for _, event in events:
        if isinstance(event, InvalidRequest):
            raise event


PARSERS: dict[type[Message], Callable[[Any], object]] = {
    cluster_pb2.JoinRequest: cluster.report_from_wire,
    cluster_pb2.JoinResponse: cluster.directive_from_wire,
    coordinator_pb2.GenerateRequest: coordinator.generate_from_wire,
    coordinator_pb2.GenerateResponse: coordinator.generate_events,
    coordinator_pb2.GetModelInfoResponse: coordinator.model_info_from_wire,
    coordinator_pb2.GetClusterResponse: coordinator.cluster_from_wire,
    coordinator_pb2.GetPlanResponse: coordinator.plan_in_force_from_wire,
    coordinator_pb2.GetTracingResponse: coordinator.tracing_in_force_from_wire,
    coordinator_pb2.SetPlanRequest: coordinator.set_plan_from_wire,
    coordinator_pb2.SetPlanResponse: coordinator.plan_in_force_from_wire,
    coordinator_pb2.SetTracingRequest: coordinator.set_tracing_from_wire,
    coordinator_pb2.SetTracingResponse: coordinator.tracing_in_force_from_wire,
    coordinator_pb2.UpdateWeightsRequest: weights.update_from_wire,
    coordinator_pb2.UpdateWeightsResponse: weights.updated_from_wire,
    drafter_pb2.DrafterServiceUpdateWeightsRequest: weights.drafter_update_from_wire,
    drafter_pb2.DrafterServiceUpdateWeightsResponse: weights.drafter_updated_from_wire,
    verifier_pb2.VerifierServiceUpdateWeightsRequest: weights.verifier_update_from_wire,
    verifier_pb2.VerifierServiceUpdateWeightsResponse: weights.verifier_updated_from_wire,
    drafter_pb2.DraftRequest: lambda message: first_error(drafter.draft_request_events(message)),
    drafter_pb2.DraftResponse: lambda message: first_error(drafter.draft_response_events(message)),
    drafter_pb2.GetDrafterInfoResponse: drafter.drafter_info_from_wire,
    verifier_pb2.DecodeRequest: lambda message: verifier.decode_from_wire(message, 2**32),
    verifier_pb2.DecodeResponse: verifier.decode_events,
    verifier_pb2.DecodeSessionsRequest: lambda message: first_error(sessions.sessions_request_events(message, 2**32)),
    verifier_pb2.DecodeSessionsResponse: lambda message: first_error(sessions.sessions_response_events(message)),
    verifier_pb2.WatchRequest: watching.watch_from_wire,
    verifier_pb2.WatchResponse: watching.watch_event,
    vllm_engine_pb2.GenerateRequest: vllm.generate_from_wire,
    vllm_engine_pb2.AbortRequest: vllm.abort_from_wire,
    vllm_engine_pb2.GetLoadsRequest: vllm.loads_from_wire,
    vllm_engine_pb2.EmbedRequest: check,
    gateway_pb2.FlushCacheRequest: vllm_operations.flush_from_wire,
    gateway_pb2.FlushCacheResponse: vllm_operations.outcome_from_wire,
    gateway_pb2.StartProfileRequest: vllm_operations.start_profile_from_wire,
    gateway_pb2.ProfileResponse: vllm_operations.outcome_from_wire,
    gateway_pb2.SubscribeKvEventsRequest: vllm_operations.subscribe_from_wire,
}
"""By message of a call; a message without fields is not read, and of a gateway's protocol requests are, and what comes of an
operation that a coordinator passes on."""


def messages_of_calls() -> set[type[Message]]:
    methods = [method for file in FILES for service in file.services_by_name.values() for method in service.methods]
    kinds = {kind for method in methods for kind in (method.input_type, method.output_type)}
    kinds |= read_of_the_engine()
    return {GetMessageClass(kind) for kind in kinds if kind.fields}


def read_of_the_engine() -> set[Descriptor]:
    """What is read of the engine protocol: requests, and what operations come to."""
    passed_on = ("FlushCache", "StartProfile", "StopProfile")
    answers = {method.output_type for method in ENGINE.methods if method.name in passed_on}
    return {method.input_type for method in ENGINE.methods} | answers


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def expected_shape(field: FieldDescriptor) -> tuple[bool, bool]:
    """Whether the limit of a field counts entries, and whether it measures them."""
    return field.is_repeated, field.type in TEXTS


def fields_of_the_protos() -> Iterator[FieldDescriptor]:
    for file in FILES:
        for message in file.message_types_by_name.values():
            yield from message.fields
    yield from {field for message in read_of_the_engine() for field in fields_below(message)}


def fields_below(descriptor: Descriptor) -> Iterator[FieldDescriptor]:
    """The fields of a message and of those inside it, entries of maps apart."""
    yield from descriptor.fields
    for field in descriptor.fields:
        if field.message_type is not None:
            values = field.message_type.fields_by_name["value"] if is_map(field) else field
            yield from fields_below(values.message_type) if values.message_type is not None else ()


def test_every_field_that_can_be_long_has_a_limit_and_no_other_has() -> None:
    long = {
        field.full_name.removeprefix("specsplit.v1."): expected_shape(field)
        for field in fields_of_the_protos()
        if any(expected_shape(field))
    }
    assert {name: (limit.entries is not None, limit.length is not None) for name, limit in LIMITS.items()} == long


def test_every_message_of_a_call_has_its_parser_here() -> None:
    assert set(PARSERS) == messages_of_calls()


Path = tuple[FieldDescriptor, ...]


def paths_below(descriptor: Descriptor, above: Path = ()) -> Iterator[Path]:
    """The way to every field with a limit."""
    for field in descriptor.fields:
        if any(expected_shape(field)):
            yield (*above, field)
        if field.message_type is not None and not is_map(field):
            yield from paths_below(field.message_type, (*above, field))


def limit_of(field: FieldDescriptor) -> Limit:
    return LIMITS[field.full_name.removeprefix("specsplit.v1.")]


def one_value(field: FieldDescriptor, length: int) -> Any:
    if field.type in TEXTS:
        return "x" * length if field.type == FieldDescriptor.TYPE_STRING else bytes(length)
    return GetMessageClass(field.message_type)() if field.message_type is not None else 1


def fill(message: Message, path: Path, entries: int, length: int) -> None:
    """Give the field at the end of `path` so many entries of that length."""
    for field in path[:-1]:
        inner = getattr(message, field.name)
        message = inner.add() if field.is_repeated else inner
        message.SetInParent()
    last = path[-1]
    if is_map(last):
        key, value = cast("Descriptor", last.message_type).fields
        keys = map(str, range(entries)) if key.type in TEXTS else range(entries)
        for each in keys:
            if value.message_type is None:
                getattr(message, last.name)[each] = "x" if value.type in TEXTS else 1.0
            else:
                getattr(message, last.name)[each].SetInParent()
    elif last.is_repeated:
        getattr(message, last.name).extend([one_value(last, length)] * entries)
    else:
        setattr(message, last.name, one_value(last, length))


def excesses(field: FieldDescriptor) -> Iterator[tuple[int, int]]:
    """Entries and lengths that are one too many."""
    limit = limit_of(field)
    if limit.entries is not None:
        yield limit.entries + 1, 1
    if limit.length is not None:
        yield 1, limit.length + 1


CASES = [(kind, path) for kind in PARSERS for path in paths_below(cast("Descriptor", kind.DESCRIPTOR))]


@pytest.mark.parametrize(
    ("kind", "path"), CASES, ids=[".".join([kind.DESCRIPTOR.name, *(f.name for f in path)]) for kind, path in CASES]
)
def test_one_too_many_is_refused_by_name(kind: type[Message], path: Path) -> None:
    for entries, length in excesses(path[-1]):
        if length > 2**25:
            continue  # what the transport lets through is shorter
        message = kind()
        fill(message, path, entries, length)
        whole = ".".join(field.name for field in path)
        in_event = whole.removeprefix("events.")  # the path in an event of a Draft stream begins at the event
        assert refused_field(lambda: PARSERS[kind](message)) in (whole, in_event)  # noqa: B023 (called at once)
        data = message.SerializeToString()
        if entries > 1 and len(data) > SCANNED_BYTES:
            assert refused_field(lambda: PARSERS[kind](request_reader(kind.FromString)(data))) == whole  # noqa: B023


def refused_field(parse: Callable[[], object]) -> str:
    """Without the indices of lists."""
    with pytest.raises(InvalidRequest, match="expected at most") as caught:
        parse()
    return re.sub(r"\[\d+\]", "", caught.value.field)


@pytest.mark.parametrize(
    "field", [path[-1] for _, path in CASES], ids=lambda field: field.full_name.removeprefix("specsplit.v1.")
)
def test_as_much_as_the_limit_allows_is_read(field: FieldDescriptor) -> None:
    limit = limit_of(field)
    if (limit.length or 0) > 2**25:
        return
    kind = GetMessageClass(cast("Descriptor", field.containing_type))
    message = kind()
    fill(message, (field,), limit.entries or 1, limit.length or 1)
    assert request_reader(kind.FromString)(message.SerializeToString()) == message
    check(message)


LONG = "x" * MAX_NAME


def test_the_largest_messages_of_our_own_are_not_taken_for_an_attack() -> None:
    plan, load = Plan(), Load(1, 1, 1, 1, 1, 1.0)
    model = ModelInfo(LONG, Vocabulary(9, LONG), 9, (1,))
    host = Host(LONG, Host.ranges(range(0, 2 * MAX_CORE_RANGES, 2)), 9, LONG)
    members = (Member(LONG, LONG, model, 9, load, True, 9, plan, build=LONG, host=host),) * MAX_MEMBERS
    sampling = Sampling(1, 1, 0.5, 0.5, 1, (), 1.5, 0.5, 0.5)
    opened = Open((1,), sampling, plan, Vocabulary(9, LONG), 9, LONG, FeatureLayout(8), 1, 0, host=host)
    endpoint = Endpoint("d", "host:1", FeatureNeed((1,), 9, FeatureFormat.TARGET, LONG, 9))
    for message in (
        coordinator.cluster_to_wire(Cluster(members, 9, 9)),
        drafter.draft_request([(each, opened) for each in range(MAX_EVENTS)]),
        cluster.directive_to_wire(Roster((endpoint,) * MAX_MEMBERS)),
        coordinator.generate_to_wire(GenerateRequest(ChatPrompt((ChatMessage("user", LONG),) * MAX_CHAT_MESSAGES))),
    ):
        data = message.SerializeToString()
        assert len(data) > SCANNED_BYTES
        assert response_reader(type(message).FromString)(data) == message


def test_sessions_that_bias_as_much_as_they_may_are_opened_in_messages_that_are_not_taken_for_an_attack() -> None:
    sampling = Sampling(logit_bias=tuple((token, 1.5) for token in range(MAX_BIASES)))
    opened = Open((1,), sampling, Plan(), Vocabulary(2 * MAX_BIASES, LONG), 9, LONG, FeatureLayout(8), 1)
    messages = list(packed([(each, opened) for each in range(100)], 2**30))
    assert sum(map(len, messages)) == 100
    assert 1 < len(messages) < 10
    for message in messages:
        data = drafter.draft_request(message).SerializeToString()
        assert drafter.draft_request_events(request_reader(drafter_pb2.DraftRequest.FromString)(data)) == message


def test_a_roster_names_no_more_drafters_than_a_verifier_takes() -> None:
    roster = Roster(tuple(Endpoint(f"d{each}", "host:1") for each in range(MAX_MEMBERS + 1)))
    assert cluster.directive_from_wire(cluster.directive_to_wire(roster)) == Roster(roster.drafters[:MAX_MEMBERS])


def delimited(number: int, data: bytes) -> bytes:
    assert number < 16 and len(data) >= 2**14
    length = len(data)
    return bytes([number << 3 | 2, length & 127 | 128, length >> 7 & 127 | 128, length >> 14]) + data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x10\x01" * MAX_RECORDS + b"\x10\x01", id="a list that is not packed"),
        pytest.param(b"\xf0\x07\x01" * MAX_RECORDS + b"\xf0\x07\x01", id="unknown fields"),
        pytest.param(b"\x1a\x00" * MAX_RECORDS + b"\x1a\x00", id="a message again and again"),
    ],
)
def test_a_message_of_very_many_fields_is_refused_whatever_they_are(data: bytes) -> None:
    message = request_reader(verifier_pb2.DecodeRequest.FromString)(data)
    with pytest.raises(InvalidRequest, match=f"holds more than {MAX_RECORDS:,} fields"):
        verifier.decode_from_wire(message, 9)


TRUNCATED = delimited(2, bytes(2**15))[:-1]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff", id="a key that does not end"),
        pytest.param(b"\xff" * 2 * SCANNED_BYTES, id="many of them"),
        pytest.param(TRUNCATED, id="cut off"),
        pytest.param(b"\x0b" * 2 * SCANNED_BYTES, id="groups"),
        pytest.param(b"\x0a\x01\xff", id="a text that is not Unicode"),
    ],
)
def test_what_is_no_message_is_told_as_such_to_a_caller_and_of_a_peer(data: bytes) -> None:
    request = request_reader(verifier_pb2.DecodeRequest.FromString)(data)
    with pytest.raises(InvalidRequest, match="request: is not a DecodeRequest"):
        verifier.decode_from_wire(request, 9)
    response = response_reader(coordinator_pb2.DoneEvent.FromString)(data)
    with pytest.raises(Incompatible, match="the peer sent what is not a DoneEvent"):
        check(response)


@given(st.binary(max_size=200), st.sampled_from(list(PARSERS)))
def test_the_scan_lets_pass_what_can_be_parsed_and_refuses_only_what_cannot(data: bytes, kind: type[Message]) -> None:
    """In small, where nothing is too long."""
    try:
        kind.FromString(data)
    except DecodeError:
        return
    with suppress(NotAMessage):  # a group, which nobody sends
        look(data, cast("Descriptor", kind.DESCRIPTOR))
        return
    assert any(byte & 7 in (3, 4) for byte in data)


def test_more_malformed_events_than_a_message_may_hold_end_the_stream() -> None:
    bad = drafter_pb2.DraftRequestEvent(session_id=7, commit=drafter_pb2.CommitEvent(number=1))
    few = drafter_pb2.DraftRequest(events=[bad] * MAX_MALFORMED_EVENTS)
    assert len(drafter.draft_request_events(few)) == MAX_MALFORMED_EVENTS
    many = drafter_pb2.DraftRequest(events=[bad] * (MAX_MALFORMED_EVENTS + 1))
    with pytest.raises(InvalidRequest, match="events: has more than 64 malformed entries, the last of them: commit"):
        drafter.draft_request_events(many)


def test_a_sequence_longer_than_the_context_is_refused_before_its_tokens_are_looked_at() -> None:
    decode = verifier_pb2.DecodeRequest(token_ids=[99] * 9)
    with pytest.raises(InvalidRequest, match="token_ids: has 9 entries, expected at most 8"):
        verifier.decode_from_wire(decode, 50, max_context=8)
