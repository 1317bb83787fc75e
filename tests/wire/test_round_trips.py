"""What is sent is what arrives: every value survives its trip through bytes; every malformed message names its field."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.draft_events import Close, Open, Refuse, ToDrafter, ToVerifier
from specsplit.errors import IllegalEvent, InvalidRequest
from specsplit.features import FeatureNeed
from specsplit.sessions import Begin, DecodeRequest, Failed, Finished, Leave, Preempted, Tokens
from specsplit.speculation import Commit, Grow, Mirror
from specsplit.v1 import common_pb2, drafter_pb2, verifier_pb2
from specsplit.values import (
    Adapter,
    AdapterLoad,
    DrafterInfo,
    DrafterKind,
    Endpoint,
    FinishReason,
    Load,
    ModelInfo,
    NoDrafts,
    NoDraftsCause,
    Plan,
    PlanChanges,
    PromptLogprobs,
    Sampling,
    SpeculationStatistics,
    Stopping,
    TokenLogprob,
    Usage,
    Vocabulary,
)
from specsplit.wire import common, drafter, sessions, verifier, watching
from specsplit.wire.scan import SCANNED_BYTES
from tests.wire.strategies import constraints, features, hosts, layouts, needs, reads

VOCAB = 50
u32 = st.integers(0, 2**32 - 1)
scopes = st.binary(max_size=32)
tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9).map(tuple)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 5),
    top_k=st.integers(0, 99),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=4).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
    repetition_penalty=st.floats(1e-6, 1e6),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
)
plans = st.builds(
    Plan,
    num_steps=st.integers(0, 64),
    topk=st.integers(1, 64),
    num_draft_tokens=st.integers(1, 256),
    wait_budget_us=st.integers(0, 60_000_000),
    draft_ahead=st.booleans(),
)
plan_changes = st.builds(
    PlanChanges,
    num_steps=st.none() | st.integers(0, 64),
    topk=st.none() | st.integers(1, 64),
    num_draft_tokens=st.none() | st.integers(1, 256),
    wait_budget_us=st.none() | st.integers(0, 60_000_000),
    draft_ahead=st.none() | st.booleans(),
)
vocabularies = st.builds(Vocabulary, st.integers(1, 2**31), st.sampled_from(["", "ab" * 32]))
statistics = st.builds(SpeculationStatistics, u32, u32, u32, u32, u32)
stoppings = st.builds(Stopping, st.none() | st.integers(9, 10**6), tokens, st.booleans(), st.integers(0, 9))
endpoints = st.builds(Endpoint, st.text(max_size=8), st.just("host:1"), needs, st.integers(0, 2**32 - 1))
decodes = st.builds(
    DecodeRequest, st.text(max_size=9), tokens, samplings, stoppings, plan_changes, st.none() | endpoints,
    st.none() | st.integers(0, 20), st.booleans(), scope=scopes, constraint=st.none() | constraints,
    prompt_logprobs=st.none() | st.integers(0, 20), adapter=st.sampled_from(["", "french"]),
)  # fmt: skip
resumed = st.builds(
    DecodeRequest, st.text(max_size=9), tokens.filter(lambda ids: len(ids) > 1), samplings, st.just(Stopping()),
    committed=st.just(1),
)  # fmt: skip
opens = st.builds(
    Open, tokens, samplings, plans, st.just(Vocabulary(VOCAB)), st.integers(1, 4096), st.text(max_size=9), layouts,
    st.integers(0, 1), u32, scopes, hosts, st.none() | constraints, tokens,
)  # fmt: skip
commits = st.builds(
    Commit, st.integers(1, 2**31), st.integers(0, 2**63), tokens, u32, st.integers(0, 2**63),
    st.floats(0, 1, exclude_max=True, width=32),
)  # fmt: skip


@st.composite
def grows(draw: st.DrawFn) -> Grow:
    ids = tuple(sorted(draw(st.sets(st.integers(1, 2**40), max_size=8))))
    parents = tuple(draw(st.integers(0, i - 1)) for i in ids)
    rescored = tuple(sorted(draw(st.sets(st.integers(1, 2**40), max_size=8))))
    edges, new_edges = (tuple(draw(st.floats(-1024, 0, width=32)) for _ in of) for of in (ids, rescored))
    tokens = tuple(draw(st.integers(0, VOCAB - 1)) for _ in ids)
    return Grow(draw(u32), ids, parents, tokens, edges, draw(st.booleans()), rescored, new_edges)


@given(samplings, plan_changes, plans, stoppings, vocabularies, statistics)
def test_common_values_round_trip(
    sampling: Sampling,
    changes: PlanChanges,
    plan: Plan,
    stopping: Stopping,
    vocabulary: Vocabulary,
    sums: SpeculationStatistics,
) -> None:
    assert common.sampling_from_wire(common.sampling_to_wire(sampling)) == sampling
    assert common.plan_from_wire(common.plan_to_wire(changes)) == changes
    assert common.plan_from_wire(common.plan_to_wire(plan)).over(Plan()) == plan
    assert common.stopping_from_wire(common.stopping_to_wire(stopping)) == stopping
    assert common.vocabulary_from_wire(common.vocabulary_to_wire(vocabulary)) == vocabulary
    assert common.speculation_from_wire(common.speculation_to_wire(sums)) == sums


@given(st.text(max_size=8), vocabularies, st.integers(1, 2**20), tokens, st.sampled_from(DrafterKind), needs, u32)
def test_infos_round_trip(
    model: str, vocabulary: Vocabulary, context: int, ids: tuple[int, ...], kind: DrafterKind, need: FeatureNeed, n: int
) -> None:
    adapters = tuple(Adapter(name, "0f" * 32, n) for name in ("french", "sql")[: n % 3])
    target = ModelInfo(model, vocabulary, context, ids, looks_up=bool(n % 2), adapters=adapters)
    found = common.model_from_wire(common.model_to_wire(target))
    assert found == target and [adapter.rank for adapter in found.adapters] == [n] * (n % 3)
    for known in (vocabulary, None):
        info = DrafterInfo(kind, model, known, context, need)
        assert drafter.drafter_info_from_wire(drafter.drafter_info_to_wire(info)) == info
    used = tuple(AdapterLoad(adapter.name, n) for adapter in adapters)
    load = Load(n, n // 2, n, n, n, n / 7, n // 9, adapters=used)
    assert common.load_from_wire(common.load_to_wire(load)) == load


@pytest.mark.parametrize(
    ("adapters", "problem"),
    [
        ([("", "0f")], r"adapters\[0\]: has no name or no digest"),
        ([("a", "0f"), ("b", "")], r"adapters\[1\]: has no name or no digest"),
        ([("a", "0f"), ("b", "0f"), ("a", "ab")], r"adapters\[2\].name: is a, which another has"),
    ],
)
def test_adapters_that_cannot_be_told_from_each_other_are_refused(
    adapters: list[tuple[str, str]], problem: str
) -> None:
    told = [common_pb2.Adapter(name=name, digest=digest) for name, digest in adapters]
    message = common_pb2.ModelInfo(vocabulary=common_pb2.Vocabulary(size=8), max_context=8, adapters=told)
    with pytest.raises(InvalidRequest, match=problem):
        common.model_from_wire(message)


@given(st.lists(st.tuples(u32, opens | commits | features() | plans | st.just(Close()))))
def test_draft_requests_round_trip(events: list[tuple[int, ToDrafter]]) -> None:
    data = drafter.draft_request(events).SerializeToString()
    assert list(drafter.draft_request_events(drafter_pb2.DraftRequest.FromString(data))) == events


@given(st.lists(st.tuples(u32, grows() | reads | st.builds(Refuse, st.integers(1, 16), st.text(max_size=9)))))
def test_draft_responses_round_trip(events: list[tuple[int, ToVerifier]]) -> None:
    data = drafter.draft_response(events).SerializeToString()
    assert list(drafter.draft_response_events(drafter_pb2.DraftResponse.FromString(data))) == events


@given(decodes | resumed)
def test_decode_requests_round_trip(request: DecodeRequest) -> None:
    data = verifier.decode_to_wire(request).SerializeToString()
    assert verifier.decode_from_wire(verifier_pb2.DecodeRequest.FromString(data), VOCAB) == request


def test_a_scope_of_more_than_32_bytes_is_refused_and_who_knows_of_none_says_none() -> None:
    asked = DecodeRequest("r", (1,), scope=bytes(33))
    opened = Open((1,), Sampling(), Plan(), Vocabulary(VOCAB), 1, scope=bytes(33))
    with pytest.raises(InvalidRequest, match="scope: has 33 bytes, expected at most 32"):
        verifier.decode_from_wire(verifier.decode_to_wire(asked), VOCAB)
    ((_, refused),) = drafter.draft_request_events(drafter.draft_request([(1, opened)]))
    assert isinstance(refused, InvalidRequest)
    assert (refused.field, refused.problem) == ("open.scope", "has 33 bytes, expected at most 32")
    assert verifier.decode_from_wire(verifier_pb2.DecodeRequest(token_ids=[1]), VOCAB).scope == b""


@given(tokens, statistics, st.sampled_from(FinishReason), st.none() | st.integers(0, 9), u32)
def test_decode_responses_round_trip(
    ids: tuple[int, ...], sums: SpeculationStatistics, reason: FinishReason, stop: int | None, n: int
) -> None:
    tops = tuple(TokenLogprob(token, -token / 2) for token in ids[:2])
    logprobs = tuple(TokenLogprob(token, -0.25, tops) for token in ids)
    for event in (
        Tokens(ids, len(ids) - 1, sums, cached_prompt_tokens=n),
        Tokens(ids, 0, sums, logprobs),
        Tokens(ids, 0, sums, no_drafts=NoDrafts(NoDraftsCause.LATE, rarely=True)),
        Preempted(),
        PromptLogprobs(0, (5, *ids), logprobs),
        PromptLogprobs(n // 2 + 1, (*ids, 1), (*logprobs, TokenLogprob(1, -0.5, tops))),
        Finished(reason, stop, Usage(n, n // 2, n // 3), sums),
        Finished(
            reason, stop, Usage(n, n // 2, n // 3), sums, NoDrafts(NoDraftsCause.PRICE, n, 1.5, 1.25, rarely=True)
        ),
    ):
        data = verifier.decode_response(event).SerializeToString()
        assert verifier.decode_events(verifier_pb2.DecodeResponse.FromString(data)) == [event]


@given(st.lists(decodes | resumed, max_size=3), st.none() | st.floats(1e-3, 1e9), st.text(max_size=9))
def test_events_that_begin_and_leave_sessions_round_trip(
    requests: list[DecodeRequest], timeout_s: float | None, traceparent: str
) -> None:
    begins = [Begin(replace(each, prompt_logprobs=None), timeout_s, traceparent) for each in requests]
    said: list[tuple[int, Begin | Leave]] = [*enumerate(begins, 1), (2**64 - 1, Leave())]
    written = [
        sessions.leave_event(session) if isinstance(event, Leave) else sessions.begin_event(session, event)
        for session, event in said
    ]
    heard = [
        event
        for message in sessions.sessions_requests(written, 40)
        for event in sessions.sessions_request_events(
            verifier_pb2.DecodeSessionsRequest.FromString(message.SerializeToString()), VOCAB
        )
    ]
    assert heard == said


@given(st.lists(st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2), tokens), max_size=300), statistics)
def test_what_sessions_get_round_trips_in_messages_that_are_not_scanned(
    drawn: list[tuple[int, int, tuple[int, ...]]], sums: SpeculationStatistics
) -> None:
    failed, end = Failed(b"a status"), Finished(FinishReason.STOP, None, Usage(1, 2, 0), sums)
    answers = [
        (session, (Tokens(ids, 0, sums), end, failed)[kind], ())
        if kind
        else (session, Tokens(ids, 0, sums), (Tokens(ids, 0, sums),))
        for session, kind, ids in drawn
    ]
    messages = [message.SerializeToString() for message in sessions.sessions_responses(answers)]
    assert all(len(data) <= SCANNED_BYTES for data in messages)
    heard = [
        event
        for data in messages
        for event in sessions.sessions_response_events(verifier_pb2.DecodeSessionsResponse.FromString(data))
    ]
    assert heard == [
        (session, event if isinstance(event, Failed) else [*earlier, event]) for session, event, earlier in answers
    ]


def test_an_event_that_is_long_by_itself_is_a_message_of_its_own() -> None:
    short, long = Tokens((1,), 0, SpeculationStatistics()), Tokens((2**31,) * 9_000, 0, SpeculationStatistics())
    answers = [(1, short, ()), (2, long, ()), (3, short, ()), (4, short, ())]
    messages = list(sessions.sessions_responses(answers))
    assert [[event.session_id for event in message.events] for message in messages] == [[1], [2], [3, 4]]


def test_one_event_that_cannot_be_read_leaves_the_others_as_they_are() -> None:
    message = verifier_pb2.DecodeSessionsRequest(
        events=[
            sessions.begin_event(1, Begin(DecodeRequest("a", (1,)))),
            {"session_id": 2},
            {"session_id": 3, "begin": {"request": {"token_ids": [VOCAB]}}},
            {"session_id": 4, "begin": {"request": {"token_ids": [1]}, "timeout_s": float("nan")}},
            {"session_id": 5, "begin": {"request": {"token_ids": [1], "prompt_logprobs": 0}}},
            {"session_id": 6, "begin": {}},
            sessions.leave_event(1),
        ]
    )
    heard = dict(sessions.sessions_request_events(message, VOCAB)[1:])
    assert {session: event.field for session, event in heard.items() if isinstance(event, InvalidRequest)} == {
        2: "event", 3: "token_ids[0]", 4: "timeout_s", 5: "prompt_logprobs", 6: "token_ids",
    }  # fmt: skip
    assert heard[1] == Leave()


def test_the_accept_length_is_told_with_the_sums() -> None:
    sums = SpeculationStatistics(steps=4, drafted=20, accepted=6, hits=1, misses=3)
    assert common.speculation_to_wire(sums).accept_length == sums.accept_length == 2.5
    assert common.speculation_to_wire(SpeculationStatistics()).accept_length == 0


def test_sums_that_the_wire_has_no_room_for_are_written_as_the_largest_number() -> None:
    most = SpeculationStatistics(*[2**32 - 1] * 5)
    assert common.speculation_from_wire(common.speculation_to_wire(SpeculationStatistics.sum([most, most]))) == most
    told = common_pb2.SpeculationStatistics(steps=4, accepted=6, accept_length=99)
    assert common.speculation_from_wire(told).accept_length == 2.5


GROW = {"commits": 0, "ids": [1, 2], "parents": [0, 1], "token_ids": [3, 4], "edges": [-1.0, -2.0]}


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"ids": range(1, 65_538)}, r"grow.ids: has 65,537 entries, expected at most 65,536"),
        ({"edges": [-1.0] * 65_537}, "grow.edges: has 65,537 entries, expected at most 65,536"),
        ({"parents": [0]}, "grow.parents"),
        ({"edges": [-1.0, -2.0, -3.0]}, "grow.edges"),
        ({"token_ids": []}, "grow.token_ids"),
        ({"rescored_ids": [1]}, "grow.new_edges: has 0 entries, expected 1 as in grow.rescored_ids"),
    ],
)
def test_a_malformed_grow_names_its_field_and_leaves_the_others_alone(broken: dict[str, Any], field: str) -> None:
    bad = drafter_pb2.GrowEvent(**{**GROW, **broken})
    good = drafter_pb2.GrowEvent(**GROW)
    message = drafter_pb2.DraftResponse(
        events=[
            drafter_pb2.DraftResponseEvent(session_id=1, grow=bad),
            drafter_pb2.DraftResponseEvent(session_id=2, grow=good),
            drafter_pb2.DraftResponseEvent(session_id=3),
        ]
    )
    (_, first), (_, second), (_, third) = drafter.draft_response_events(message)
    assert isinstance(first, InvalidRequest)
    with pytest.raises(InvalidRequest, match=field):
        raise first
    assert isinstance(second, Grow)
    assert isinstance(third, InvalidRequest) and third.field == "event"


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"ids": [2, 1]}, "grow.ids"),
        ({"ids": [2, 2]}, "grow.ids"),
        ({"ids": [0, 2]}, r"grow.ids\[0\]"),
        ({"ids": [1, 2**63]}, "grow.ids"),
        ({"parents": [0, 2]}, r"grow.parents\[1\]"),
        ({"edges": [-1.0, float("nan")]}, "grow.edges"),
        ({"edges": [-1.0, 0.5]}, "grow.edges"),
        ({"rescored_ids": [2, 1], "new_edges": [-1.0, -1.0]}, "grow.rescored_ids"),
        ({"rescored_ids": [1], "new_edges": [-2000.0]}, "grow.new_edges"),
    ],
)
def test_a_grow_that_is_no_tree_is_refused_where_it_is_watched_and_by_the_mirror_where_it_is_applied(
    broken: dict[str, Any], field: str
) -> None:
    bad = drafter_pb2.GrowEvent(**{**GROW, **broken})
    with pytest.raises(InvalidRequest, match=field):
        watching.watch_event(verifier_pb2.WatchResponse(grown=bad))
    with pytest.raises(IllegalEvent):
        Mirror(1, 0, 0, max_nodes=8, vocab_size=VOCAB).grow(drafter.grow_from_wire(bad))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (verifier_pb2.DecodeRequest(), "token_ids"),
        (verifier_pb2.DecodeRequest(token_ids=[1, VOCAB]), "token_ids[1]"),
        (
            verifier_pb2.DecodeRequest(token_ids=[1], sampling=common_pb2.Sampling(temperature=-1, seed=1)),
            "temperature",
        ),
        (
            verifier_pb2.DecodeRequest(token_ids=[1], sampling=common_pb2.Sampling(temperature=1e39, seed=1)),
            "temperature",
        ),
        (verifier_pb2.DecodeRequest(token_ids=[1], sampling=common_pb2.Sampling(temperature=1)), "sampling.seed"),
        (verifier_pb2.DecodeRequest(token_ids=[1], sampling=common_pb2.Sampling(top_p=0)), "top_p"),
        (verifier_pb2.DecodeRequest(token_ids=[1], stopping=common_pb2.Stopping(max_tokens=0)), "max_tokens"),
        (verifier_pb2.DecodeRequest(token_ids=[1], drafter=verifier_pb2.DrafterAddress()), "drafter.address"),
        (verifier_pb2.DecodeRequest(token_ids=[1], drafter={"address": "nowhere"}), "drafter.address"),
        (verifier_pb2.DecodeRequest(token_ids=[1], drafter={"address": "h:65536"}), "drafter.address"),
        (verifier_pb2.DecodeRequest(token_ids=[1], drafter={"address": "h" * 256 + ":1"}), "drafter.address"),
        (
            verifier_pb2.DecodeRequest(token_ids=[1], drafter={"member_id": "d" * 257, "address": "h:1"}),
            "drafter.member_id",
        ),
        (verifier_pb2.DecodeRequest(token_ids=[1], request_id="r" * 257), "request_id"),
        (
            verifier_pb2.DecodeRequest(token_ids=[1], stopping={"stop_token_ids": [1] * 257}),
            "stopping.stop_token_ids",
        ),
    ],
)
def test_a_malformed_decode_request_names_its_field(message: verifier_pb2.DecodeRequest, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        verifier.decode_from_wire(message, VOCAB)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (drafter_pb2.OpenEvent(vocabulary=common_pb2.Vocabulary(size=9), max_nodes=4), "open.token_ids"),
        (
            drafter_pb2.OpenEvent(token_ids=[9], vocabulary=common_pb2.Vocabulary(size=9), max_nodes=4),
            "open.token_ids[0]",
        ),
        (drafter_pb2.OpenEvent(token_ids=[1], vocabulary=common_pb2.Vocabulary(size=9)), "open.max_nodes"),
        (drafter_pb2.OpenEvent(token_ids=[1], max_nodes=4), "vocabulary.size"),
        (
            drafter_pb2.OpenEvent(
                token_ids=[1],
                max_nodes=4,
                vocabulary=common_pb2.Vocabulary(size=9),
                sampling=common_pb2.Sampling(temperature=-1, seed=1),
            ),
            "temperature",
        ),
        (drafter_pb2.CommitEvent(number=1), "commit.token_ids"),
        (drafter_pb2.CommitEvent(token_ids=[1]), "commit.number"),
        *(
            (drafter_pb2.CommitEvent(number=1, token_ids=[1], floor=floor), "commit.floor")
            for floor in (-0.1, 1.0, math.nan, math.inf)
        ),
    ],
)
def test_a_malformed_open_or_commit_names_its_field(
    event: drafter_pb2.OpenEvent | drafter_pb2.CommitEvent, field: str
) -> None:
    if isinstance(event, drafter_pb2.OpenEvent):
        wrapped = drafter_pb2.DraftRequestEvent(session_id=5, open=event)
    else:
        wrapped = drafter_pb2.DraftRequestEvent(session_id=5, commit=event)
    message = drafter_pb2.DraftRequest(events=[wrapped, drafter_pb2.DraftRequestEvent(session_id=6)])
    (session, error), (other, nothing) = drafter.draft_request_events(message)
    assert session == 5 and isinstance(error, InvalidRequest) and error.field == field
    assert other == 6 and isinstance(nothing, InvalidRequest) and nothing.field == "event"
