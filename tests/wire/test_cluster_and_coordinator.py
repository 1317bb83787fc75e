"""cluster.proto and coordinator.proto: every value survives the wire; what is wrong with a message is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from specsplit import membership, requests
from specsplit.errors import InvalidRequest
from specsplit.v1 import cluster_pb2, common_pb2, coordinator_pb2, verifier_pb2
from specsplit.values import (
    SERVICES,
    Adapter,
    Adaptive,
    Control,
    DrafterInfo,
    DrafterKind,
    DrafterReport,
    Endpoint,
    Estimate,
    FinishReason,
    Load,
    ModelInfo,
    NoDrafts,
    NoDraftsCause,
    Plan,
    PlanChanges,
    PromptLogprobs,
    Sampling,
    SpeculationReport,
    SpeculationStatistics,
    Stopping,
    TokenLogprob,
    TraceChanges,
    Usage,
    Vocabulary,
)
from specsplit.wire import cluster, coordinator, verifier
from tests.wire.strategies import constraints, hosts, needs

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(str.isprintable)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAMED = st.just("") | NAME
TOKENS = st.lists(U32, max_size=8).map(tuple)

vocabularies = st.builds(Vocabulary, size=st.integers(1, 2**32 - 1), digest=TEXT)
models = st.builds(ModelInfo, NAME, vocabularies, st.integers(1, 2**32 - 1), TOKENS, st.none() | st.booleans())
drafters = st.builds(DrafterInfo, st.sampled_from(DrafterKind), NAMED, st.none() | vocabularies, U32, needs)
roles = models | drafters
loads = st.builds(Load, U32, U32, U32, U32, U64, st.floats(0, 1e9))
ADDRESS = st.sampled_from(["127.0.0.1:1", "[::1]:65535", "host.example:50051"])
endpoints = st.builds(Endpoint, NAME, ADDRESS, needs)
controllers = st.lists(NAME, max_size=3).map(tuple)
registers = st.builds(membership.Register, NAME, ADDRESS, roles, st.integers(1, 2**32 - 1), controllers)
group_ranks = st.builds(membership.GroupRank, NAME, st.integers(0, 7), st.integers(8, 2048))
ranks = st.builds(
    membership.Register,
    NAME,
    ADDRESS,
    models,
    st.integers(1, 2**32 - 1),
    controllers,
    st.none() | group_ranks,
    NAMED,
    hosts,
)
WAVE = st.integers(0, membership.MAX_WAVES - 1)
waves = st.builds(membership.WaveReport, WAVE, st.booleans(), st.booleans())
plans = st.builds(
    Plan, st.integers(0, 64), st.integers(1, 64), st.integers(1, 256), st.integers(0, 60_000_000), st.booleans()
)
MEASURED = st.floats(0, 1e9)
estimates = st.builds(Estimate, *[MEASURED] * 5)
drafter_reports = st.builds(
    DrafterReport,
    NAME,
    U32,
    MEASURED,
    st.floats(0, 256),
    st.floats(0, 3600),
    st.floats(0, 3600),
    st.booleans(),
    U32,
)
no_drafts = st.builds(NoDrafts, st.sampled_from(NoDraftsCause), U32, MEASURED, MEASURED, st.booleans())
speculation_reports = st.builds(
    SpeculationReport,
    NAME,
    st.none() | U32,
    plans,
    *[MEASURED] * 4,
    st.none() | estimates,
    st.lists(drafter_reports, max_size=3).map(tuple),
    st.none() | no_drafts,
)
heartbeats = st.builds(
    membership.Heartbeat,
    loads,
    st.lists(NAME, max_size=3).map(tuple),
    st.none() | plans,
    st.none() | speculation_reports,
    st.lists(st.integers(0, 2**64 - 1), max_size=3).map(tuple),
    U32,
    U32,
    st.booleans(),
)
named = st.lists(st.builds(Adapter, NAME, NAME, U32), max_size=3, unique_by=lambda each: each.name).map(tuple)
adapters = st.builds(membership.AdaptersReport, named)
reports = registers | ranks | heartbeats | waves | adapters | st.just(membership.Draining())
plan_changes = st.builds(
    PlanChanges,
    st.none() | st.integers(0, 64),
    st.none() | st.integers(1, 64),
    st.none() | st.integers(1, 256),
    st.none() | st.integers(0, 60_000_000),
    st.none() | st.booleans(),
)
controls = st.builds(Control, st.none() | st.sampled_from(Adaptive), st.none() | st.integers(1, 256))
modules = st.lists(st.sampled_from(SERVICES), min_size=1, max_size=3).map(tuple)
trace_changes = st.builds(TraceChanges, st.none() | st.integers(0, 3), st.none() | st.floats(0, 1), st.none() | modules)
directives = (
    st.builds(membership.Registered, st.integers(1, 2**32 - 1))
    | st.builds(membership.Roster, st.lists(endpoints, max_size=3).map(tuple))
    | st.builds(membership.PlanOrder, plan_changes, controls, U64)
    | st.builds(membership.HandOver, NAME, endpoints, st.integers(1, 2**32 - 1), st.booleans(), st.booleans())
    | st.builds(membership.TracingOrder, trace_changes, U64)
    | st.builds(membership.StartWave, WAVE.map(lambda number: max(1, number)))
    | st.just(membership.Drain())
    | st.just(membership.CoordinatorDraining())
)
members = st.builds(
    membership.Member,
    TEXT,
    TEXT,
    roles,
    U32,
    loads,
    st.booleans(),
    U32,
    st.none() | plans,
    st.none() | speculation_reports,
    st.none() | group_ranks,
    st.none() | waves,
    TEXT,
    hosts,
)
clusters = st.builds(membership.Cluster, st.lists(members, max_size=3).map(tuple), U32, U32, U64, U64, TEXT, U32, TEXT)

chats = st.builds(requests.ChatPrompt, st.lists(st.builds(requests.ChatMessage, TEXT, TEXT), max_size=3).map(tuple))
prompts = st.builds(requests.TextPrompt, TEXT) | chats | st.builds(requests.TokenPrompt, TOKENS)
samplings = st.builds(Sampling, st.floats(0, 10), U32, st.floats(0.01, 1), st.floats(0, 1), U64)
stoppings = st.builds(Stopping, st.none() | st.integers(1, 2**32 - 1), TOKENS, st.booleans())
stops = st.lists(TEXT, max_size=3).map(tuple)
generates = st.builds(
    requests.GenerateRequest,
    prompts,
    NAMED,
    samplings,
    st.just(True),
    stoppings,
    stops,
    st.none() | NAMED,
    plan_changes,
    st.none() | st.integers(0, 20),
    st.integers(1, 16),
    constraint=st.none() | constraints,
    prompt_logprobs=st.none() | st.integers(0, 20),
)
speculations = st.builds(SpeculationStatistics, U32, U32, U32, U32, U32)
dones = st.builds(
    requests.Done,
    request_id=TEXT,
    reason=st.sampled_from(FinishReason),
    matched_stop=st.none() | NAME | U32,
    usage=st.builds(Usage, U32, U32, U32),
    speculation=speculations,
    seed=U64,
    verifier=TEXT,
    drafter=TEXT,
    index=U32,
    no_drafts=st.none() | no_drafts,
)
M = TypeVar("M", bound=Message)


@st.composite
def logged(draw: st.DrawFn, tokens: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of tokens, with and without texts."""
    width = draw(st.integers(0, 3))
    numbers, texts = st.floats(-99, 0, width=32), draw(st.sampled_from([st.just(""), NAME]))
    tops = st.lists(
        st.builds(TokenLogprob, U32, numbers | st.just(-math.inf), text=texts), min_size=width, max_size=width
    )
    return tuple(TokenLogprob(token, draw(numbers), tuple(draw(tops)), draw(texts)) for token in tokens)


@st.composite
def told_prompts(draw: st.DrawFn) -> PromptLogprobs:
    tokens, first = draw(st.lists(U32, min_size=1, max_size=8).map(tuple)), draw(st.just(0) | U32)
    return PromptLogprobs(first, tokens, draw(logged(tokens if first else tokens[1:])))


@st.composite
def deltas(draw: st.DrawFn) -> requests.Delta:
    """With and without log-probabilities, and with and without some of the prompt."""
    tokens = draw(TOKENS)
    own = draw(st.just(()) | logged(tokens))
    return requests.Delta(draw(TEXT), tokens, draw(U32), own, draw(U32), draw(st.none() | told_prompts()))


def over_the_wire(message: M) -> M:
    return type(message).FromString(message.SerializeToString())


@given(reports)
def test_a_report_survives(report: membership.Report) -> None:
    assert cluster.report_from_wire(over_the_wire(cluster.report_to_wire(report))) == report


@given(directives)
def test_a_directive_survives(directive: membership.Directive) -> None:
    assert cluster.directive_from_wire(over_the_wire(cluster.directive_to_wire(directive))) == directive


@given(generates)
def test_a_generate_request_survives(request: requests.GenerateRequest) -> None:
    assert coordinator.generate_from_wire(over_the_wire(coordinator.generate_to_wire(request))) == request


@given(deltas() | dones)
def test_a_generate_event_survives(event: requests.Delta | requests.Done) -> None:
    assert coordinator.generate_events(over_the_wire(coordinator.generate_response(event))) == [event]


@given(plan_changes, controls, st.booleans(), U32)
def test_a_change_of_the_plan_and_its_answer_survive(
    changes: PlanChanges, control: Control, reset: bool, members: int
) -> None:
    asked = over_the_wire(coordinator.set_plan_to_wire(changes, control, reset))
    assert coordinator.set_plan_from_wire(asked) == (changes, control, reset)
    told = membership.PlanInForce(members, changes, control)
    assert coordinator.plan_in_force_from_wire(over_the_wire(coordinator.plan_set_to_wire(told))) == told
    assert coordinator.plan_in_force_from_wire(over_the_wire(coordinator.plan_in_force_to_wire(told))) == told


@given(trace_changes, st.booleans(), U32)
def test_a_change_of_what_is_traced_and_its_answer_survive(changes: TraceChanges, reset: bool, members: int) -> None:
    asked = over_the_wire(coordinator.set_tracing_to_wire(changes, reset))
    assert coordinator.set_tracing_from_wire(asked) == (changes, reset)
    told = membership.TracingInForce(members, changes)
    assert coordinator.tracing_in_force_from_wire(over_the_wire(coordinator.tracing_set_to_wire(told))) == told
    assert coordinator.tracing_in_force_from_wire(over_the_wire(coordinator.tracing_in_force_to_wire(told))) == told


@given(clusters)
def test_a_cluster_survives(value: membership.Cluster) -> None:
    assert coordinator.cluster_from_wire(over_the_wire(coordinator.cluster_to_wire(value))) == value


@given(models)
def test_a_model_survives(info: ModelInfo) -> None:
    assert coordinator.model_info_from_wire(over_the_wire(coordinator.model_info_to_wire(info))) == info


def test_an_absent_seed_is_told_from_seed_0() -> None:
    unseeded = coordinator.generate_to_wire(requests.GenerateRequest(requests.TextPrompt("x"), sampling=Sampling(1.0)))
    assert not coordinator.generate_from_wire(unseeded).seeded
    seeded = coordinator.generate_to_wire(requests.GenerateRequest(requests.TextPrompt("x"), seeded=True))
    assert coordinator.generate_from_wire(seeded).seeded


def test_an_absent_sampling_stopping_and_plan_take_their_defaults() -> None:
    request = coordinator.generate_from_wire(coordinator_pb2.GenerateRequest(text="x"))
    assert request == requests.GenerateRequest(requests.TextPrompt("x"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("json_schema", ""),
        ("regex", ""),
        ("grammar", ""),
        ("structural_tag", ""),
        ("choice", common_pb2.ChoiceConstraint()),
    ],
)
def test_a_constraint_that_is_empty_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="is empty") as caught:
        coordinator.generate_from_wire(coordinator_pb2.GenerateRequest(text="x", **{field: value}))
    assert caught.value.field == field


def test_values_that_ask_for_nothing_are_let_through() -> None:
    message = coordinator_pb2.GenerateRequest(text="x", n=1, json_object=False)
    assert coordinator.generate_from_wire(message).prompt == requests.TextPrompt("x")


def with_unknown(message: Message, number: int = 999) -> Message:
    """The same message with a varint field that no version knows."""
    key = number << 3
    tag = bytes([key & 0x7F | 0x80, key >> 7])
    return type(message).FromString(message.SerializeToString() + tag + b"\x01")


def test_an_unknown_field_is_refused_by_number_wherever_it_stands() -> None:
    top = with_unknown(coordinator_pb2.GenerateRequest(text="x"))
    assert isinstance(top, coordinator_pb2.GenerateRequest)
    with pytest.raises(InvalidRequest, match=r"request: field number 999"):
        coordinator.generate_from_wire(top)
    message = coordinator_pb2.GenerateRequest(
        chat=coordinator_pb2.ChatPrompt(messages=[coordinator_pb2.ChatMessage(role="user")])
    )
    message.chat.messages[0].CopyFrom(with_unknown(message.chat.messages[0]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidRequest, match=r"chat\.messages: field number 999"):
        coordinator.generate_from_wire(message)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("prompt", coordinator_pb2.GenerateRequest()),
        ("n", coordinator_pb2.GenerateRequest(text="x", n=0)),
        ("n", coordinator_pb2.GenerateRequest(text="x", n=17)),
        ("logprobs", coordinator_pb2.GenerateRequest(text="x", logprobs=21)),
        ("logprobs", coordinator_pb2.GenerateRequest(text="x", logprobs=2**32 - 1)),
        ("prompt_logprobs", coordinator_pb2.GenerateRequest(text="x", prompt_logprobs=21)),
        ("temperature", coordinator_pb2.GenerateRequest(text="x", sampling={"temperature": -1})),
        ("temperature", coordinator_pb2.GenerateRequest(text="x", sampling={"temperature": float("nan")})),
        ("temperature", coordinator_pb2.GenerateRequest(text="x", sampling={"temperature": float("inf")})),
        ("temperature", coordinator_pb2.GenerateRequest(text="x", sampling={"temperature": 10_001.0})),
        ("top_p", coordinator_pb2.GenerateRequest(text="x", sampling={"top_p": 0})),
        ("min_p", coordinator_pb2.GenerateRequest(text="x", sampling={"min_p": 1.5})),
        ("max_tokens", coordinator_pb2.GenerateRequest(text="x", stopping={"max_tokens": 0})),
        ("request_id", coordinator_pb2.GenerateRequest(text="x", request_id="r" * 257)),
        ("stop", coordinator_pb2.GenerateRequest(text="x", stop=["."] * 17)),
        ("stop[1]", coordinator_pb2.GenerateRequest(text="x", stop=[".", "é" * 1001])),
        ("stopping.stop_token_ids", coordinator_pb2.GenerateRequest(text="x", stopping={"stop_token_ids": [1] * 257})),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, message: coordinator_pb2.GenerateRequest) -> None:
    with pytest.raises(InvalidRequest) as caught:
        coordinator.generate_from_wire(message)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "call",
    [
        lambda: cluster.report_from_wire(cluster_pb2.JoinRequest()),
        lambda: cluster.report_from_wire(cluster_pb2.JoinRequest(register={"member_id": "a", "address": "b"})),
        lambda: cluster.directive_from_wire(cluster_pb2.JoinResponse()),
        lambda: cluster.directive_from_wire(cluster_pb2.JoinResponse(registered={})),
        lambda: cluster.directive_from_wire(
            cluster_pb2.JoinResponse(roster={"drafters": [verifier_pb2.DrafterAddress(member_id="d")]})
        ),
        lambda: coordinator.generate_events(coordinator_pb2.GenerateResponse()),
        lambda: coordinator.cluster_from_wire(coordinator_pb2.GetClusterResponse(members=[coordinator_pb2.Member()])),
        lambda: coordinator.generate_to_wire(requests.GenerateRequest(requests.TokenPrompt((-1,)))),
        lambda: coordinator.set_plan_to_wire(PlanChanges(num_steps=-1), Control(), reset=False),
        lambda: cluster.directive_from_wire(cluster_pb2.JoinResponse(hand_over={"to": {"address": "h:1"}})),
        lambda: coordinator.set_tracing_to_wire(TraceChanges(level=-1), reset=False),
        lambda: coordinator.set_tracing_from_wire(coordinator_pb2.SetTracingRequest(tracing={"modules": ["m"] * 17})),
    ],
)
def test_a_message_without_its_heart_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest):
        call()


def test_the_longest_values_that_are_allowed_pass() -> None:
    message = coordinator_pb2.GenerateRequest(
        text="x", request_id="r" * 256, stop=["é" * 1000] * 16, stopping={"stop_token_ids": [1] * 256}
    )
    request = coordinator.generate_from_wire(message)
    assert (len(request.request_id), len(request.stop), len(request.stopping.stop_token_ids)) == (256, 16, 256)


def test_a_controller_that_this_build_does_not_know_is_refused_with_the_known_ones() -> None:
    asked = coordinator_pb2.SetPlanRequest(control={"adaptive": "oracle"})
    with pytest.raises(InvalidRequest, match="adaptive: is 'oracle', expected one of static, ema, goodput"):
        coordinator.set_plan_from_wire(asked)


@pytest.mark.parametrize("most", [0, 257])
def test_a_bound_out_of_range_is_refused_by_name(most: int) -> None:
    asked = coordinator_pb2.SetPlanRequest(control={"max_draft_tokens": most})
    with pytest.raises(InvalidRequest, match=rf"max_draft_tokens: is {most}, expected 1\.\.256"):
        coordinator.set_plan_from_wire(asked)


def of_drafter(**numbers: float) -> dict[str, Any]:
    """A heartbeat that reports these numbers of a drafter."""
    return speculating(drafters=[{"member_id": "d", **numbers}])


def speculating(**told: Any) -> dict[str, Any]:
    return {"speculation": {"adaptive": "static", "launched": {}, **told}}


DRAFTER = r"speculation\.drafters\."
NEVER = [-1.0, math.inf, math.nan]
"""Numbers that nothing measures."""


@pytest.mark.parametrize(
    ("heartbeat", "problem"),
    [
        *((of_drafter(accepted=number), f"{DRAFTER}accepted") for number in NEVER),
        *(
            (of_drafter(accepted=nodes), rf"{DRAFTER}accepted: is {nodes}, expected 0\.\.256")
            for nodes in (256.5, 1e9, math.inf)
        ),
        *(
            (of_drafter(**{name: seconds}), rf"{DRAFTER}{name}: is .*, expected 0\.\.3600")
            for name in ("held_s", "round_trip_s")
            for seconds in (3600.5, 1e306, math.inf)
        ),
        *(
            ({"load": {"step_ms": number}}, rf"load\.step_ms: is {number}, expected a finite number that is not neg")
            for number in (*NEVER, -math.inf)
        ),
        *(
            (speculating(no_drafts={"cause": 8, field: number}), f"speculation.no_drafts.{field}: is")
            for field in ("cost_ratio", "tokens")
            for number in NEVER
        ),
        ({"speculation": {"adaptive": "static"}}, r"speculation\.launched: is missing"),
    ],
)
def test_a_heartbeat_of_what_cannot_have_been_measured_is_refused_by_name(
    heartbeat: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        cluster.report_from_wire(cluster_pb2.JoinRequest(heartbeat=heartbeat))


def test_a_report_of_a_controller_that_this_build_does_not_know_is_read_all_the_same() -> None:
    report = cluster.report_from_wire(
        cluster_pb2.JoinRequest(heartbeat={"speculation": {"adaptive": "oracle", "launched": {}}})
    )
    assert isinstance(report, membership.Heartbeat)
    assert report.speculation == SpeculationReport("oracle")


def test_a_reason_for_no_drafts_that_this_build_does_not_know_counts_as_none() -> None:
    for cause in (0, 99):
        told = speculating(no_drafts={"cause": cause, "nodes": 3})
        report = cluster.report_from_wire(cluster_pb2.JoinRequest(heartbeat=told))
        assert isinstance(report, membership.Heartbeat) and report.speculation == SpeculationReport("static")


NGRAM = common_pb2.DrafterInfo(kind=common_pb2.DRAFTER_KIND_NGRAM)
HEAD = common_pb2.DrafterInfo(kind=common_pb2.DRAFTER_KIND_EAGLE, features={"layers": [1]})


@pytest.mark.parametrize(
    ("report", "field"),
    [
        ({"register": {"member_id": "a", "address": "nowhere", "drafter": NGRAM}}, "register.address"),
        ({"register": {"member_id": "a", "address": "here:99999", "drafter": NGRAM}}, "register.address"),
        ({"register": {"member_id": "a", "address": "h" * 256 + ":1", "drafter": NGRAM}}, "register.address"),
        ({"register": {"member_id": "a" * 257, "address": "here:1", "drafter": NGRAM}}, "register.member_id"),
        ({"heartbeat": {"lost_drafters": ["a", "b" * 257]}}, "heartbeat.lost_drafters[1]"),
        ({"register": {"member_id": "a", "address": "here:1", "drafter": HEAD}}, "features.hidden_size"),
    ],
)
def test_a_report_with_a_bad_or_endless_name_address_or_need_is_refused_by_name(
    report: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cluster.report_from_wire(cluster_pb2.JoinRequest(**report))
    assert caught.value.field == field


UNPRINTABLE = ["a\nb", "\x1b[2J", "a\x00", "\u202eb", "\u2028", "a\tb"]


@pytest.mark.parametrize("name", UNPRINTABLE)
@pytest.mark.parametrize("field", ["member_id", "drafter.model", "group.group_id", "controllers"])
def test_a_name_of_a_member_is_printable(field: str, name: str) -> None:
    report = cluster_pb2.RegisterReport(member_id="a", address="here:1", drafter=NGRAM)
    inner, _, last = field.rpartition(".")
    if field == "controllers":
        report.controllers.append(name)
    else:
        setattr(getattr(report, inner) if inner else report, last, name)
    if inner == "group":
        report.group.size = 1
    with pytest.raises(InvalidRequest, match="expected a name of printable characters alone") as caught:
        cluster.report_from_wire(cluster_pb2.JoinRequest(register=report))
    assert caught.value.field == f"register.{field}"


@pytest.mark.parametrize("name", UNPRINTABLE)
@pytest.mark.parametrize("field", ["request_id", "drafter"])
def test_a_name_in_a_request_is_printable(field: str, name: str) -> None:
    message = coordinator_pb2.GenerateRequest(text="x")
    setattr(message, field, name)
    with pytest.raises(InvalidRequest, match="expected a name of printable characters alone") as caught:
        coordinator.generate_from_wire(message)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("member_id", "address", "max_sessions", "field"),
    [
        ("", "a:1", 1, "register.member_id"),
        ("a", "", 1, "register.address"),
        ("a", "a", 1, "register.address"),
        ("a", ":1", 1, "register.address"),
        ("a", "a:port", 1, "register.address"),
        ("a", "a:1", 0, "register.max_sessions"),
    ],
)
def test_a_registration_needs_a_name_an_address_and_room(
    member_id: str, address: str, max_sessions: int, field: str
) -> None:
    role = DrafterInfo(DrafterKind.NGRAM, "", None, 512)
    with pytest.raises(InvalidRequest) as caught:
        membership.Register(member_id, address, role, max_sessions)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("logprobs", "field"),
    [
        ({"picked": [-1.0]}, "picked"),
        ({"picked": [-1.0] * 2, "top": [-1.0] * 3, "top_token_ids": [1] * 3}, "top"),
        ({"top": [-1.0], "top_token_ids": [1]}, "top"),
        ({"picked": [-1.0] * 2, "top": [-1.0] * 2, "top_token_ids": [1]}, "top_token_ids"),
        ({"picked": [-1.0] * 2, "picked_texts": ["x"]}, "picked_texts"),
        ({"picked": [-1.0] * 2, "top": [-1.0] * 2, "top_token_ids": [1] * 2, "top_texts": ["x"]}, "top_texts"),
    ],
)
def test_log_probabilities_that_do_not_go_with_their_tokens_are_refused_by_name(
    logprobs: dict[str, Any], field: str
) -> None:
    message = coordinator_pb2.GenerateResponse(delta={"token_ids": [1, 2], "logprobs": logprobs})
    with pytest.raises(InvalidRequest) as caught:
        coordinator.generate_events(message)
    assert caught.value.field == f"delta.logprobs.{field}"


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({}, "token_ids"),
        ({"first": 3}, "token_ids"),
        ({"token_ids": [1, 2]}, "logprobs"),
        ({"first": 3, "token_ids": [1]}, "logprobs"),
        ({"first": 3, "token_ids": [1, 2], "logprobs": {"picked": [-1.0]}}, "logprobs.picked"),
        ({"token_ids": [1, 2], "logprobs": {"picked": [-1.0, -2.0]}}, "logprobs.picked"),
    ],
)
def test_a_prompt_that_is_told_without_one_for_each_token_is_refused_by_name(
    prompt: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        coordinator.generate_events(coordinator_pb2.GenerateResponse(delta={"prompt": prompt}))
    assert caught.value.field == f"delta.prompt.{field}"
    with pytest.raises(InvalidRequest) as caught:
        verifier.decode_events(verifier_pb2.DecodeResponse(prompt=prompt))
    assert caught.value.field == f"prompt.{field}"
