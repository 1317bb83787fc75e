"""What a real verifier says of its work, with a real drafter: spans at a receiver, metrics at a scrape; nothing if nobody asks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from specsplit.clock import SystemClock
from specsplit.membership import PlanOrder, Register, Roster, TracingOrder
from specsplit.observe import TraceContext, Tracing
from specsplit.observe.otlp import OtlpSink
from specsplit.observe.span_table import DECODE_CALL, ENGINE_CALL, problems_of, row, rows_at
from specsplit.records import TurnCosts
from specsplit.rpc import Server, dial, wait_until_serving
from specsplit.sessions import DecodeRequest, Finished
from specsplit.settings import VerifierSettings
from specsplit.speculation import Draft, Grow
from specsplit.v1 import drafter_pb2, verifier_pb2_grpc
from specsplit.values import (
    DrafterKind,
    Endpoint,
    Miss,
    Plan,
    PlanChanges,
    SpeculationStatistics,
    Stopping,
    TraceChanges,
    TraceScope,
)
from specsplit.wire import verifier as wire
from specsplit_verifier.edge.service import service_of
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import Accepted, StepResult
from specsplit_verifier.report.spans import Spans
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session
from tests.drafter.service_toys import drafter
from tests.rpc.test_member import Script, coordinating
from tests.support.eventually import eventually
from tests.support.otlp import ReceivedSpan, named, receiving, total
from tests.support.scrape import sums
from tests.support.sessions import drafting_for, session_of
from tests.verifier.conftest import decode, recorded, verifier_over
from tests.verifier.results import STEP
from tests.verifier.test_drafters import scripted

if TYPE_CHECKING:
    from specsplit.v1 import verifier_pb2

    Call = grpc.aio.UnaryStreamCall[verifier_pb2.DecodeRequest, verifier_pb2.DecodeResponse]

WAIT_S = 20.0
ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
PROMPT = ALPHABET + b"abcdefg"
SERIAL = PlanChanges(num_steps=4, topk=2, num_draft_tokens=6, draft_ahead=False, wait_budget_us=20_000_000)
"""The verifier waits for every answer, so that nothing depends on how fast the drafter is."""
CALLER = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, sampled=True)
TOKENS = 30


@dataclass(frozen=True)
class Serving:
    """A verifier behind a port of its own, a drafter behind another, and a caller's channel."""

    server: Server
    channel: grpc.aio.Channel
    drafter: Endpoint

    def call(self, request: DecodeRequest, metadata: Sequence[tuple[str, str]] = ()) -> Call:
        stub = verifier_pb2_grpc.VerifierServiceStub(self.channel)
        return stub.Decode(wire.decode_to_wire(request), timeout=WAIT_S, metadata=tuple(metadata))

    async def decode(
        self, prompt: bytes = PROMPT, caller: TraceContext | None = CALLER, tokens: int = TOKENS, *, drafts: bool = True
    ) -> tuple[bytes, Finished]:
        """One session, from the first byte to the last."""
        request = DecodeRequest("a name", list(prompt), stopping=Stopping(tokens), plan=SERIAL)
        request = replace(request, drafter=self.drafter if drafts else None)
        metadata = () if caller is None else (("traceparent", caller.traceparent),)
        written = b""
        async for message in self.call(request, metadata):
            if message.WhichOneof("event") == "finished":
                *_, end = wire.decode_events(message)
                assert isinstance(end, Finished)
                return written, end
            written += bytes(message.tokens.token_ids)
        raise AssertionError("the stream ended without an end")


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Serving]:
    service = service_of(
        VerifierSettings.load(model=folder, step_token_budget=16, **{"adaptive": "static", **settings})
    )
    await service.start()
    server, task = service.server, asyncio.create_task(service.serve(signals=False))
    try:
        async with drafter() as (drafting, _, _), dial(server.bound) as channel:
            await wait_until_serving(channel, WAIT_S)
            yield Serving(server, channel, Endpoint("ngram", drafting.bound))
    finally:
        server.leave()
        server.leave()
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait({task})


def inside(child: ReceivedSpan, parent: ReceivedSpan) -> bool:
    """Below it in the tree and within its time."""
    below = (child.trace_id, child.parent_id) == (parent.trace_id, parent.span_id)
    return below and parent.start_ns <= child.start_ns <= child.end_ns <= parent.end_ns


def sums_of(span: ReceivedSpan) -> SpeculationStatistics:
    return SpeculationStatistics(
        *(span.attributes[name] for name in ("steps", "drafted", "accepted", "hits", "misses"))
    )


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_the_spans_of_a_session_are_those_of_the_table(alphabet: Path, level: int) -> None:
    with receiving() as receiver:
        async with serving(alphabet, trace_endpoint=receiver.address, trace_level=level) as verifier:
            written, end = await verifier.decode()
    assert written.startswith(b"hijklmn") and end.speculation.accepted > 10
    spans = receiver.spans
    expected = {each.name for each in rows_at(level, DrafterKind.NGRAM) if each.service == "verifier"}
    assert {span.name for span in spans} == expected - {ENGINE_CALL}
    for span in spans:
        assert (span.service, span.failed, span.events) == ("specsplit-verifier", False, ())
        assert problems_of(row("verifier", span.name, span.kind), span.attributes.items()) == []
    check_stages(spans, end)
    if level >= 2:
        check_steps(spans, end)
    if level >= 3:
        check_parts(spans)


def check_stages(spans: Sequence[ReceivedSpan], end: Finished) -> None:
    (call,), (session,) = named(spans, DECODE_CALL), named(spans, "session")
    (prefill,), (decoding,) = named(spans, "prefill"), named(spans, "decode")
    assert f"00-{call.trace_id}-{call.parent_id}-01" == CALLER.traceparent
    assert inside(session, call) and inside(prefill, session) and inside(decoding, session)
    assert prefill.start_ns <= decoding.start_ns < prefill.end_ns, "the step that reads the last of the prompt decodes"
    assert prefill.attributes == {"request_id": "a name", "prompt_tokens": 33, "committed": 0, "chunks": 2}
    assert decoding.attributes["request_id"] == "a name"
    assert sums_of(decoding) == end.speculation


def check_steps(spans: Sequence[ReceivedSpan], end: Finished) -> None:
    """One per step of the session, in order, each as long as its step, and linked to it."""
    (decoding,), verified = named(spans, "decode"), named(spans, "spec_verify")
    assert [span.attributes["step"] for span in verified] == list(range(1, end.speculation.steps + 1))
    assert total(verified, "num_draft_tokens") - len(verified) == end.speculation.drafted
    assert total(verified, "num_correct_drafts") == total(verified, "accepted_tokens") == end.speculation.accepted
    assert total(verified, "hit") == end.speculation.hits
    assert {span.attributes["plan.num_steps"] for span in verified} == {SERIAL.num_steps}
    assert all(span.attributes["idle"] == (span.attributes["num_draft_tokens"] == 1) for span in verified)
    assert all(inside(span, decoding) for span in verified)
    assert verified[-1].end_ns == decoding.end_ns
    steps = {(span.trace_id, span.span_id): span for span in named(spans, "step")}
    assert len({trace for trace, _ in steps} | {decoding.trace_id}) == len(steps) + 1, "each is a trace of its own"
    assert {span.parent_id for span in steps.values()} == {""}
    for span in verified:
        (link,) = span.links
        assert (span.start_ns, span.end_ns) == (steps[link].start_ns, steps[link].end_ns)
        assert span.attributes["batch_size"] == steps[link].attributes["sessions"]
    assert total(list(steps.values()), "committed") == end.usage.completion_tokens
    assert total(list(steps.values()), "prefill_tokens") == end.usage.prompt_tokens - 1


def check_parts(spans: Sequence[ReceivedSpan]) -> None:
    (prefill,), (decoding,), chunks = named(spans, "prefill"), named(spans, "decode"), named(spans, "prefill_chunk")
    assert [(span.attributes["first"], span.attributes["tokens"]) for span in chunks] == [(0, 16), (16, 16)]
    assert all(inside(span, prefill) for span in chunks)
    verified = {span.attributes["step"]: span for span in named(spans, "spec_verify")}
    waits = named(spans, "spec_wait")
    assert waits, "a serial session waits for its drafter"
    for span in waits:
        step = verified[span.attributes["step"]]
        assert (span.end_ns, span.links) == (step.start_ns, step.links)
        assert (span.trace_id, span.parent_id) == (decoding.trace_id, decoding.span_id)
        assert span.attributes["wait_budget_us"] == SERIAL.wait_budget_us
    batches = {(span.trace_id, span.span_id) for span in named(spans, "step")}
    assert {link for span in (*chunks, *waits, *verified.values()) for link in span.links} == batches


async def test_sessions_of_one_step_link_to_the_same_span_and_only_those_of_sampled_callers_have_any(
    alphabet: Path,
) -> None:
    other, unsampled = replace(CALLER, trace_id=7), replace(CALLER, trace_id=9, sampled=False)
    with receiving() as receiver:
        async with serving(alphabet, trace_endpoint=receiver.address, trace_level=2, paced_step_base_ms=10) as verifier:
            callers = (CALLER, other, unsampled)
            await asyncio.gather(*(verifier.decode(b"a", caller, drafts=False) for caller in callers))
    spans = receiver.spans
    verified, steps = named(spans, "spec_verify"), named(spans, "step")
    assert {span.trace_id for span in verified} == {f"{caller.trace_id:032x}" for caller in (CALLER, other)}
    assert len(verified) == 2 * TOKENS
    assert len({span.links for span in verified}) == len(steps) < len(verified), "they share steps"
    assert max(span.attributes["batch_size"] for span in verified) == 3
    assert {(span.attributes["chunks"], span.attributes["prompt_tokens"]) for span in named(spans, "prefill")} == {
        (0, 1)
    }


def test_a_forward_for_other_ranks_alone_is_a_step_that_says_so_while_somebody_is_traced_here(alphabet: Path) -> None:
    idle = replace(STEP, tokens=0, began=1.0, started=1.1, ended=1.2, turn=TurnCosts(1, (0, 5)))
    with receiving() as receiver:
        settings = VerifierSettings.load(model=alphabet, trace_endpoint=receiver.address)
        sink = OtlpSink("verifier", settings)
        tracing = Tracing("verifier", TraceScope(level=2), sink)
        spans = Spans(tracing, SystemClock())
        spans.step(idle)
        with tracing.within(CALLER):
            spans.submitted(1, DecodeRequest("waits for pages", [1]), tracing.current())
        spans.step(idle)
        sink.close()
        (step,) = named(receiver.spans, "step")
    assert problems_of(row("verifier", "step", "internal"), step.attributes.items()) == []
    assert (step.attributes["idle"], step.attributes["tokens"]) == (True, 0)


async def test_what_a_drafter_does_hangs_below_decode(alphabet: Path) -> None:
    with receiving() as receiver:
        async with (
            scripted(lambda event: None) as (peer, endpoint),
            serving(alphabet, trace_endpoint=receiver.address) as verifier,
        ):
            here = replace(verifier, drafter=endpoint)
            call = asyncio.create_task(here.decode())
            await until_opened(peer.seen, 1)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            (decoding,) = await asyncio.to_thread(receiver.named, "decode")
            verifier.server.tracing.apply(TraceChanges(modules=("drafter",)))
            call = asyncio.create_task(here.decode())
            await until_opened(peer.seen, 2)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
    first, second = (event.open.traceparent for event in peer.seen if event.WhichOneof("event") == "open")
    assert first == f"00-{decoding.trace_id}-{decoding.span_id}-01"
    assert second == CALLER.traceparent, "a verifier that makes no spans hands on those of its caller"


async def until_opened(seen: Sequence[drafter_pb2.DraftRequestEvent], count: int) -> None:
    await eventually(lambda: sum(event.WhichOneof("event") == "open" for event in seen) >= count)


async def test_a_session_that_fails_says_why_and_one_that_is_left_does_not(alphabet: Path) -> None:
    with receiving() as receiver:
        async with serving(alphabet, trace_endpoint=receiver.address, paced_step_base_ms=5) as verifier:
            with pytest.raises(grpc.aio.AioRpcError, match="max_tokens"):
                await verifier.decode(tokens=5000)
            failed = {name: await asyncio.to_thread(receiver.named, name) for name in ("prefill", "decode")}
            call = verifier.call(DecodeRequest("left", list(b"a")))
            await call.read()
            call.cancel()
            decodes = await asyncio.to_thread(receiver.named, "decode", 2)
    for (span,) in failed.values():
        assert span.failed and "max_tokens" in span.sentence
    (left,) = (span for span in decodes if span.attributes["request_id"] == "left")
    assert not left.failed and left.attributes["steps"] >= 1


async def test_a_level_that_changes_holds_from_the_next_step_on(alphabet: Path) -> None:
    with receiving() as receiver:
        async with serving(alphabet, trace_endpoint=receiver.address, trace_level=1, paced_step_base_ms=5) as verifier:
            call = verifier.call(DecodeRequest("r", list(b"a"), stopping=Stopping(400)))
            await call.read()
            verifier.server.tracing.apply(TraceChanges(level=2))
            await asyncio.to_thread(receiver.named, "spec_verify", 3)
            verifier.server.tracing.apply(TraceChanges(level=0))
            call.cancel()
            (decoding,) = await asyncio.to_thread(receiver.named, "decode")
    verified = named(receiver.spans, "spec_verify")
    assert 3 <= len(verified) < decoding.attributes["steps"]
    assert {span.parent_id for span in verified} == {decoding.span_id}


async def test_a_scrape_agrees_with_what_callers_are_told(alphabet: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        async with serving(alphabet, metrics_listen="127.0.0.1:0") as verifier:
            (url,) = re.findall(r"http://\S+/metrics", caplog.text)
            ends = [
                (await verifier.decode())[1],
                (await verifier.decode(b"zzzzyzzzyzyzzyzyza"))[1],
                (await verifier.decode(drafts=False))[1],
            ]
            scraped = await asyncio.to_thread(sums, url)
    told = [end.speculation for end in ends]
    assert scraped["specsplit_session_steps_total"] == sum(each.steps for each in told)
    assert scraped["specsplit_drafted_tokens_total"] == sum(each.drafted for each in told) > 0
    assert scraped["specsplit_accepted_tokens_total"] == sum(each.accepted for each in told) > 0
    assert scraped["specsplit_hits_total"] == sum(each.hits for each in told)
    assert scraped["specsplit_misses_total"] == sum(each.misses for each in told)
    assert scraped["specsplit_generated_tokens_total"] == sum(end.usage.completion_tokens for end in ends)
    assert scraped["specsplit_prompt_tokens_total"] == sum(end.usage.prompt_tokens for end in ends)
    cached = sum(end.usage.cached_prompt_tokens for end in ends)
    assert scraped["specsplit_cached_tokens_total"] == cached
    assert scraped["specsplit_prefill_tokens_total"] == sum(end.usage.prompt_tokens - 1 for end in ends) - cached
    assert scraped["specsplit_accept_length_count"] == sum(each.steps for each in told[:2])
    assert scraped["specsplit_accepted_depth_total"] == scraped["specsplit_accepted_tokens_total"]
    assert scraped["specsplit_steps_total"] == scraped["specsplit_verify_time_seconds_count"]
    assert scraped["specsplit_round_trip_seconds_count"] > 0
    assert scraped["specsplit_nodes_received_total"] >= scraped["specsplit_drafted_tokens_total"]
    assert scraped["specsplit_running_sessions"] == scraped["specsplit_kv_pages_used"] == 0
    assert scraped["specsplit_spec_num_steps"] == 0, "the last one had no drafter"
    assert scraped["specsplit_plan_switches_total"] == scraped["specsplit_failovers_total"] == 0


async def test_the_coordinators_orders_are_obeyed(alphabet: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    with caplog.at_level("INFO"), receiving() as receiver:
        told = {"metrics_listen": "127.0.0.1:0", "trace_endpoint": receiver.address, "trace_level": 0}
        async with coordinating(script) as address, serving(alphabet, coordinator=address, **told) as verifier:
            (url,) = re.findall(r"http://\S+/metrics", caplog.text)
            assert isinstance(await script.next_report(), Register)
            for _ in range(2):
                script.directives.put_nowait(PlanOrder(PlanChanges(num_steps=0)))
            script.directives.put_nowait(TracingOrder(TraceChanges(level=3)))
            async with asyncio.timeout(WAIT_S):
                await eventually(lambda: verifier.server.tracing.wants(3))
                while (scraped := await asyncio.to_thread(sums, url))["specsplit_plan_switches_total"] == 0:
                    await asyncio.sleep(0.01)
    assert scraped["specsplit_plan_switches_total"] == 1, "told twice, changed once"


async def test_with_everything_off_the_engine_reports_nothing(alphabet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[StepResult | None] = []
    original = Verifier.deliver

    def deliver(self: Verifier, outputs: object, drafts: object, report: StepResult | None) -> None:
        reports.append(report)
        original(self, outputs, drafts, report)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Verifier, "deliver", deliver)
    async with verifier_over(alphabet) as verifier:
        await decode(verifier, DecodeRequest("r", list(b"a"), stopping=Stopping(3)))
        assert not verifier.watching
    assert len(reports) >= 3 and set(reports) == {None}


async def test_every_node_that_came_is_accounted_for(alphabet: Path) -> None:
    own = {"num_steps": 2, "num_draft_tokens": 4, "paced_step_base_ms": 5.0}
    async with drafter() as (server, _, _), verifier_over(alphabet, **own) as verifier:
        records, endpoint = recorded(verifier), Endpoint("ngram", server.bound)
        texts = (PROMPT, ALPHABET[3:] + b"abcab", b"zzzzyzzzyzyzzyzyza")
        requests = [
            DecodeRequest("r", list(text), stopping=Stopping(60 + 7 * i), drafter=endpoint)
            for i, text in enumerate(texts)
        ]
        ends = await asyncio.gather(*(decode(verifier, request) for request in requests))
        leaving = verifier.decode(replace(requests[0], stopping=Stopping(300)))
        await anext(leaving)
        await leaving.aclose()
        hits = lost = came = drafted = 0
        async with asyncio.timeout(WAIT_S):
            while True:  # what comes when all is over is told of with the next step
                await decode(verifier, DecodeRequest("plain", list(b"a"), stopping=Stopping(1)))
                hits, drafted = sum(r.hits for r in records), sum(r.drafted for r in records)
                lost = sum(r.drafts.unverified_nodes + r.drafts.late_nodes for r in records)
                came = verifier.streams.statistics[endpoint.address].nodes_received
                if came == drafted + hits + lost:
                    break
                await asyncio.sleep(0.02)
    assert hits >= sum(end.speculation.hits for _, end in ends) > 0 and lost > 0
    assert all(0 <= seconds < WAIT_S for r in records for seconds in r.drafts.round_trips_s)
    assert any(r.drafts.round_trips_s for r in records)


def grown(resting: bool, *nodes: tuple[int, int, int]) -> tuple[Session, Draft]:
    """A session at root 1 whose drafter has grown (id, parent, token)s, and the step that it takes over the first two levels."""
    plan = Plan(num_steps=1, topk=2, num_draft_tokens=3)
    session, drafter = session_of(plan=plan), drafting_for()
    session.drafter = drafter
    ids, parents, tokens = zip(*nodes, strict=True) if nodes else ((), (), ())
    drafter.mirror.grow(Grow(0, ids, parents, tokens, [-0.1 * each for each in ids], resting))
    return session, session.take(session.tree_limits)


CHAIN = ((1, 0, 11), (2, 0, 12), (3, 1, 21), (4, 1, 22), (5, 3, 31))
"""Below the root 11 and 12; below 11, 21 and 22; below 21, 31. The first two fit into the step."""


@pytest.mark.parametrize(
    ("resting", "nodes", "path", "bonus", "miss", "cut"),
    [
        pytest.param(False, CHAIN, [0, 1], 21, None, 1, id="a hit: 22 is cut off, 31 lives on"),
        pytest.param(False, CHAIN, [0, 1], 99, Miss.WRONG, 3, id="others stood there"),
        pytest.param(True, CHAIN, [0], 99, Miss.WRONG, 3, id="at the root too"),
        pytest.param(False, CHAIN, [0, 2], 99, Miss.LATE, 3, id="nothing stood there yet"),
        pytest.param(True, CHAIN, [0, 2], 99, Miss.NONE, 3, id="nothing was to come"),
        pytest.param(False, (), [0], 99, Miss.LATE, 0, id="nothing at all yet"),
        pytest.param(True, (), [0], 99, Miss.NONE, 0, id="nothing at all"),
    ],
)
def test_a_miss_has_a_cause_and_a_commit_cuts_off_what_was_not_taken(
    resting: bool, nodes: tuple[tuple[int, int, int], ...], path: list[int], bonus: int, miss: Miss | None, cut: int
) -> None:
    session, draft = grown(resting, *nodes)
    assert len(draft.tokens) == min(3, 1 + len(nodes))
    result = session.commit(draft, Accepted(path, bonus), now=0.0)
    assert (result.hit, result.miss, result.reroot.cut) == (miss is None, miss, cut)
    assert isinstance(session.drafter, DraftSession)
    assert session.drafter.untaken == len(nodes) - (len(draft.tokens) - 1) - cut - (miss is None)


async def test_a_session_given_to_another_drafter_is_counted(alphabet: Path) -> None:
    def refuse(event: drafter_pb2.DraftRequestEvent) -> drafter_pb2.DraftResponseEvent | None:
        full = drafter_pb2.RefuseEvent(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="full")
        return drafter_pb2.DraftResponseEvent(session_id=event.session_id, refuse=full)

    async with (
        scripted(refuse) as (_, first),
        scripted(lambda event: None) as (other, second),
        verifier_over(alphabet, paced_step_base_ms=5.0) as verifier,
    ):
        records = recorded(verifier)
        verifier.engine.post(Roster((first, second)))
        events = verifier.decode(DecodeRequest("r", list(b"a"), drafter=first))
        await anext(events)
        await until_opened(other.seen, 1)
        before = verifier.load().steps
        while verifier.load().steps < before + 2:
            await anext(events)
        await events.aclose()
        assert sum(record.drafts.failovers for record in records) == 1
