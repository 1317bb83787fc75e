"""The coordinator's part of a trace, as the real exporter sends it to a receiver."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from specsplit.client import ChatMessage, ChatPrompt
from specsplit.errors import Exhausted, InvalidRequest, Unavailable
from specsplit.observe import TraceContext
from specsplit.observe.span_table import DECODE_CALL, ENGINE_CALL, GENERATE_CALL, problems_of, row, rows_at
from specsplit.sessions import DecodeEvent, DecodeRequest, Tokens
from specsplit.values import DrafterKind, SpeculationStatistics, TraceChanges
from tests.support.eventually import eventually
from tests.support.otlp import ReceivedSpan, Receiver, receiving

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]
CALLER = TraceContext(0xA0, 0xB0, sampled=True)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def start(start_cluster: StartCluster, receiver: Receiver) -> Callable[..., Any]:
    async def start(**settings: object) -> Cluster:
        return await start_cluster(trace_endpoint=receiver.address, **settings)

    return start


async def whole(cluster: Cluster, receiver: Receiver) -> dict[str, ReceivedSpan]:
    """Every span, by name and kind, once the coordinator has stopped; each is there once."""
    await cluster.coordinator.stop()
    spans = {f"{span.kind} {span.name}": span for span in receiver.spans}
    assert len(spans) == len(receiver.spans)
    return spans


def check_against_table(spans: dict[str, ReceivedSpan]) -> None:
    """Places and attributes are those of the table."""
    for span in spans.values():
        of = row("coordinator", span.name, span.kind)
        assert problems_of(of, span.attributes.items()) == []
        parent = of.parent and spans[of.parent.removeprefix("coordinator ")]
        if parent:
            assert (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)
            assert parent.start_ns <= span.start_ns <= span.end_ns


async def test_a_request_has_exactly_the_spans_of_the_table(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    cluster = await start()
    await cluster.add_drafter(DrafterKind.NGRAM, "d1")
    verifier = await cluster.add_verifier(say((5, 6), (7,)))
    result = await cluster.client.generate("x", max_tokens=9, temperature=0.5, top_p=0.9, top_k=3, seed=2**64 - 1)
    spans = await whole(cluster, receiver)
    expected = {f"{each.kind} {each.name}" for each in rows_at(3) if each.service == "coordinator"}
    expected -= {f"server {ENGINE_CALL}", f"client {DECODE_CALL}"}
    assert set(spans) == expected
    check_against_table(spans)
    call = spans["internal session"]
    assert verifier.traceparents == [f"00-{call.trace_id}-{call.span_id}-01"]
    generate = dict(spans["internal generate"].attributes)
    assert 0 <= generate.pop("gen_ai.response.time_to_first_chunk") < 60
    assert generate == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "specsplit",
        "gen_ai.request.model": "toy",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.seed": -1,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.id": "drawn",
        "gen_ai.response.model": "toy",
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 3,
        "specsplit.verifier": "v1",
        "specsplit.drafter": "d1",
        "specsplit.steps": 2,
        "specsplit.drafted": 8,
        "specsplit.accepted": 1,
        "specsplit.hits": 1,
        "specsplit.misses": 1,
        "specsplit.accept_length": result.speculation.accept_length,
    }
    assert spans["internal tokenize"].attributes == {"tokens": 1}
    assert spans["internal queue"].attributes == {"verifier": "v1"}


async def test_a_conversation_is_a_chat_and_what_was_not_asked_for_is_left_out(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    cluster = await start()
    await cluster.add_verifier(say((5,)))
    await cluster.client.generate(ChatPrompt((ChatMessage("user", "hello"),)))
    generate = (await whole(cluster, receiver))["internal generate"].attributes
    assert generate["gen_ai.operation.name"] == "chat"
    assert not {"gen_ai.request.max_tokens", "specsplit.drafter"} & set(generate)


async def test_a_request_for_several_choices_is_one_span_with_sums_and_a_call_for_each(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    cluster = await start()
    await cluster.add_verifier(say((5, 6), (7,)))
    await cluster.client.generate("x", n=3)
    await cluster.coordinator.stop()
    names = Counter(f"{span.kind} {span.name}" for span in receiver.spans)
    assert names == {
        f"server {GENERATE_CALL}": 1,
        "internal generate": 1,
        "internal tokenize": 1,
        "internal queue": 3,
        "internal session": 3,
    }
    (whole,) = [span for span in receiver.spans if span.name == "generate"]
    assert {span.parent_id for span in receiver.spans if span.name in ("queue", "session")} == {whole.span_id}
    told = whole.attributes
    assert problems_of(row("coordinator", "generate", "internal"), told.items()) == []
    assert (told["gen_ai.request.choice.count"], told["gen_ai.response.finish_reasons"]) == (3, ["stop"] * 3)
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (1, 9)
    assert (told["specsplit.steps"], told["specsplit.accepted"], told["specsplit.verifier"]) == (6, 3, "v1")


async def test_a_request_belongs_to_the_span_that_is_current_in_the_program_that_sends_it(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    cluster = await start(trace_ratio=0)
    await cluster.add_verifier(say((5,)))
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    context = trace.SpanContext(CALLER.trace_id, CALLER.span_id, is_remote=False, trace_flags=flags)
    with trace.use_span(trace.NonRecordingSpan(context)):
        await cluster.client.generate("x")
    served = (await whole(cluster, receiver))[f"server {GENERATE_CALL}"]
    assert (served.trace_id, served.parent_id) == (f"{CALLER.trace_id:032x}", f"{CALLER.span_id:016x}")


async def test_a_request_that_is_refused_says_why_at_the_stage_and_as_a_whole(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    cluster = await start(max_queue=0)
    verifier = await cluster.add_verifier(say((5,), then_wait=True), max_sessions=1)
    running = asyncio.create_task(cluster.client.generate("x"))
    await eventually(lambda: verifier.open)
    with pytest.raises(Exhausted):
        await cluster.client.generate("y")
    running.cancel()
    await asyncio.wait({running})
    queue = next(span for span in await asyncio.to_thread(receiver.named, "queue", 2) if span.failed)
    generate = next(span for span in receiver.named("generate", 2) if span.failed)
    assert queue.parent_id == generate.span_id
    assert "which is all there is room for" in queue.sentence
    assert generate.sentence == queue.sentence
    assert generate.attributes["error.type"] == "RESOURCE_EXHAUSTED"
    assert problems_of(row("coordinator", "generate"), generate.attributes.items()) == []
    assert problems_of(row("coordinator", "queue"), queue.attributes.items()) == []


async def test_what_goes_wrong_before_the_queue_leaves_no_span_of_it(
    start: Callable[..., Any], receiver: Receiver
) -> None:
    cluster = await start()
    with pytest.raises(Unavailable, match="no verifier has joined"):
        await cluster.client.generate("x")
    spans = await whole(cluster, receiver)
    assert set(spans) == {f"server {GENERATE_CALL}", "internal generate"}
    check_against_table(spans)
    assert spans["internal generate"].attributes["error.type"] == "UNAVAILABLE"


async def test_a_request_that_cannot_be_read_says_so(start: Callable[..., Any], receiver: Receiver) -> None:
    cluster = await start()
    with pytest.raises(InvalidRequest):
        await cluster.client.generate("x", drafter="oracle")
    spans = await whole(cluster, receiver)
    assert set(spans) == {f"server {GENERATE_CALL}", "internal generate"}
    assert spans["internal generate"].attributes["error.type"] == "INVALID_ARGUMENT"
    assert not spans[f"server {GENERATE_CALL}"].failed


async def test_a_request_whose_caller_goes_away_ends_its_spans_and_is_no_failure(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    cluster = await start()
    await cluster.add_verifier(say((5,), then_wait=True))
    stream = cluster.client.stream("x")
    await anext(stream)
    await stream.aclose()
    generate = (await asyncio.to_thread(receiver.named, "generate"))[0]
    assert (generate.failed, generate.attributes["error.type"]) == (False, "CANCELLED")
    assert generate.attributes["gen_ai.response.time_to_first_chunk"] >= 0
    (session,) = await asyncio.to_thread(receiver.named, "session")
    assert (session.failed, session.attributes) == (False, {"verifier": "v1"})


async def test_a_lost_verifier_is_an_error_of_the_request(start: Callable[..., Any], receiver: Receiver) -> None:
    async def dying(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        registry = cluster.coordinator.registry
        registry.remove(registry.verifiers[0], "it was silent for 9.0 s")
        cluster.joined["v1"][1].cancel()
        await asyncio.Event().wait()
        yield Tokens((1,), 0, None)  # pyright: ignore[reportArgumentType]

    cluster = await start(failover_s=0)
    await cluster.add_verifier(dying)
    with pytest.raises(Unavailable):
        await cluster.client.generate("x")
    await cluster.coordinator.stop()
    spans = {f"{span.kind} {span.name}": span for span in receiver.spans}
    assert spans["internal generate"].attributes["error.type"] == "UNAVAILABLE"
    assert spans["internal generate"].events == ("failover",)
    assert spans[f"server {GENERATE_CALL}"].failed


async def test_a_failover_is_an_event_of_the_request_and_both_calls_are_in_its_trace(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    async def dying(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        raise Unavailable("the device is gone")

    cluster = await start()
    first = await cluster.add_verifier(dying, "v1", max_sessions=64)
    second = await cluster.add_verifier(say((6,)), "v2", max_sessions=1)
    assert (await cluster.client.generate("x")).tokens == (5, 6)
    await cluster.coordinator.stop()
    (whole,) = [span for span in receiver.spans if span.name == "generate"]
    assert problems_of(row("coordinator", "generate", "internal"), whole.attributes.items()) == []
    assert (whole.events, whole.attributes["specsplit.failovers"], whole.failed) == (("failover",), 1, False)
    calls = [span for span in receiver.spans if span.name == "session"]
    assert [(span.trace_id, span.parent_id) for span in calls] == [(whole.trace_id, whole.span_id)] * 2
    told = [f"00-{call.trace_id}-{call.span_id}-01" for call in sorted(calls, key=lambda span: span.start_ns)]
    assert first.traceparents + second.traceparents == told


async def test_level_and_ratio_change_for_requests_that_come_after(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    cluster = await start(trace_level=0)
    verifier = await cluster.add_verifier(say((5,)))
    for changes in (TraceChanges(), TraceChanges(level=1), TraceChanges(ratio=0), TraceChanges(ratio=1, level=3)):
        await cluster.client.set_tracing(changes)
        await cluster.client.generate("x")
    await cluster.client.set_tracing(reset=True)
    await cluster.client.generate("x")
    await cluster.coordinator.stop()
    assert [span.name for span in receiver.spans].count("generate") == 2
    assert [traceparent[-3:] for traceparent in verifier.traceparents] == ["", "-01", "-00", "-01", ""]


async def test_a_coordinator_that_makes_no_spans_passes_the_callers_trace_on(
    start: Callable[..., Any], receiver: Receiver, say: Say
) -> None:
    cluster = await start(trace_modules="verifier,drafter")
    verifier = await cluster.add_verifier(say((5,)))
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    context = trace.SpanContext(CALLER.trace_id, CALLER.span_id, is_remote=False, trace_flags=flags)
    with trace.use_span(trace.NonRecordingSpan(context)):
        await cluster.client.generate("x")
    await cluster.coordinator.stop()
    assert verifier.traceparents == [CALLER.traceparent]
    assert receiver.spans == []


async def test_without_an_endpoint_nobody_hears_of_a_trace(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,)))
    await cluster.client.set_tracing(TraceChanges(level=3))
    await cluster.client.generate("x")
    assert verifier.traceparents == [""]
