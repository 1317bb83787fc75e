"""What a real drafter says of its work: spans at a receiver, metrics at a scrape; and that it says nothing if nobody asks."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from specsplit.clock import Clock, ManualClock
from specsplit.draft_events import Close, Open
from specsplit.features import Features
from specsplit.membership import Register, TracingOrder
from specsplit.model.heads import BlockHead, Head, save_head
from specsplit.observe import TraceContext
from specsplit.observe.span_table import problems_of, row, rows_at
from specsplit.settings import DrafterSettings
from specsplit.speculation import Commit, Grow
from specsplit.values import DrafterKind, Plan, TraceChanges
from specsplit_drafter.drafts.proposer import Children, FrontierPart
from specsplit_drafter.drafts.record import Cycle
from specsplit_drafter.engine.engine import Engine
from specsplit_drafter.engine.rounds import Rounds
from specsplit_drafter.engine.session_table import Outgoing
from tests.drafter.block_toys import block_head, write_block_head
from tests.drafter.head_toys import VOCABULARY, event_of, layout_of, saveable
from tests.drafter.service_toys import NGRAM, WAIT_S, Stream, drafter
from tests.drafter.toys import TableProposer, open_event, plain_model, table_of, tiny_config
from tests.rpc.test_member import Script, coordinating
from tests.support.eventually import eventually
from tests.support.otlp import ReceivedSpan, Receiver, named, receiving, total
from tests.support.scrape import sums

DECODE = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, sampled=True)
"""The verifier's span of the session."""
PROMPT = [1, 2, 3, 4, 1, 2]
HEADS = {
    DrafterKind.EAGLE: "eagle",
    DrafterKind.EAGLE3: "eagle3",
    DrafterKind.MULTI_LAYER_EAGLE: "mimo",
}


def traced(context: TraceContext = DECODE, head: Head | BlockHead | None = None) -> Open:
    layout = layout_of(head) if head else None
    opened = open_event(PROMPT, vocabulary=VOCABULARY, plan=Plan(num_steps=2), features=layout)
    return replace(opened, traceparent=context.traceparent)


@dataclass
class Talk:
    """One session as its verifier drives it: a hit with nothing accepted, then a miss behind an accepted node."""

    stream: Stream
    session: int = 1
    head: Head | BlockHead | None = None
    committed: list[int] = field(default_factory=lambda: list(PROMPT))
    children: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(id, token) of the root's, as far as a grow named the root."""
    grown: list[int] = field(default_factory=lambda: [0])
    """Nodes that came, by round."""

    async def open(self, opened: Open) -> None:
        self.stream.send((self.session, opened), *self.features(len(PROMPT) - 1))
        await self.until_resting()

    async def commit(self, deepest: int, *tokens: int) -> None:
        commit = Commit(len(self.grown), deepest, tokens)
        self.committed += tokens
        self.grown.append(0)
        self.stream.send((self.session, commit), *self.features(len(tokens)))
        await self.until_resting()

    async def until_resting(self) -> None:
        self.children = []
        resting = False
        while not resting:
            event = await self.stream.next_of(self.session)
            if isinstance(event, Grow):
                resting = event.resting
                self.grown[event.commits] += len(event.ids)
                rows = zip(event.ids, event.parents, event.tokens, strict=True)
                self.children += [(node, token) for node, parent, token in rows if parent == 0]

    async def run(self, opened: Open) -> None:
        await self.open(opened)
        await self.commit(0, self.children[0][1])
        await self.commit(0, self.another())
        node, token = self.children[0]
        await self.commit(node, token, 4)
        self.stream.send((self.session, Close()))

    def another(self) -> int:
        """A token that was not proposed, one that was read before if there is one: how many are proposed is a matter of time."""
        proposed = {child for _, child in self.children}
        return next(token for token in (*PROMPT, *range(VOCABULARY.size)) if token not in proposed)

    def features(self, count: int) -> list[tuple[int, Features]]:
        if self.head is None:
            return []
        return [(self.session, event_of(self.head, self.committed, len(self.committed) - 1 - count, count))]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    plain_model(tiny_config()).save_pretrained(folder)
    return folder


def settings_of(kind: DrafterKind, target: Path, folder: Path) -> tuple[DrafterSettings, Head | BlockHead | None]:
    if kind is DrafterKind.NGRAM:
        return NGRAM, None
    if kind is DrafterKind.STANDALONE:
        return DrafterSettings(kind=kind, model=target, kv_tokens=1024), None
    if kind.drafts_blocks:
        head = block_head(kind.value, layers=(1, 2))
        write_block_head(head, folder)
    else:
        head = saveable(HEADS[kind])
        save_head(head, folder)
    return DrafterSettings(kind=kind, model=folder, target=target, kv_tokens=1024), head


def tracing_to(receiver: Receiver, settings: DrafterSettings = NGRAM, level: int = 3) -> DrafterSettings:
    return settings.model_copy(update={"trace_endpoint": receiver.address, "trace_level": level})


def rounds_of(spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    return sorted(named(spans, "spec_draft"), key=lambda span: span.attributes["round"])


@pytest.mark.parametrize("kind", DrafterKind)
async def test_the_spans_of_a_session_are_those_of_the_table(kind: DrafterKind, target: Path, tmp_path: Path) -> None:
    settings, head = settings_of(kind, target, tmp_path)
    with receiving() as receiver:
        async with drafter(tracing_to(receiver, settings)) as (_, channel, _):
            talk = Talk(Stream(channel), head=head)
            await talk.run(traced(head=head))
            await talk.stream.close()
    spans = receiver.spans
    assert {span.name for span in spans} == {each.name for each in rows_at(3, kind) if each.service == "drafter"}
    for span in spans:
        assert (span.service, span.failed, span.events) == ("specsplit-drafter", False, ())
        assert problems_of(row("drafter", span.name), span.attributes.items()) == []
    check_rounds(spans, talk, kind)
    check_parts(spans)
    if kind.needs_model:
        read = total(named(spans, "spec_draft_extend"), "tokens")
        assert read <= len(talk.committed)
        assert kind is DrafterKind.STANDALONE or read == len(talk.committed) - 1  # nothing is read for a first token


def check_rounds(spans: Sequence[ReceivedSpan], talk: Talk, kind: DrafterKind) -> None:
    """One per open and commit, one after the other, below the verifier's span."""
    rounds = rounds_of(spans)
    assert [span.attributes["round"] for span in rounds] == [0, 1, 2, 3]
    assert [span.attributes["grown"] for span in rounds] == talk.grown
    assert all(span.attributes["rested"] for span in rounds)
    assert {span.attributes["kind"] for span in (*rounds, *named(spans, "expansion"))} == {kind.value}
    assert {f"00-{span.trace_id}-{span.parent_id}-01" for span in rounds} == {DECODE.traceparent}
    ends = [(span.start_ns, span.end_ns) for span in rounds]
    assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]


def check_parts(spans: Sequence[ReceivedSpan]) -> None:
    """Below their round and inside it, as long as their expansion, and linked to it; nothing is missing, and nothing is counted twice."""
    batches = {(span.trace_id, span.span_id): span for span in named(spans, "expansion")}
    assert {batch.parent_id for batch in batches.values()} == {""}
    parts = named(spans, "spec_grow") + named(spans, "spec_draft_extend")
    for part in parts:
        (link,) = part.links
        assert (part.start_ns, part.end_ns) == (batches[link].start_ns, batches[link].end_ns)
    assert {link for part in parts for link in part.links} == batches.keys()
    for span in rounds_of(spans):
        below = [part for part in parts if part.parent_id == span.span_id]
        assert {part.trace_id for part in below} <= {span.trace_id}
        assert all(span.start_ns <= part.start_ns <= part.end_ns <= span.end_ns for part in below)
        assert total(named(below, "spec_grow"), "nodes") == span.attributes["expanded"]
        assert total(named(below, "spec_grow"), "grown") <= span.attributes["grown"]
    assert {part.parent_id for part in parts} <= {span.span_id for span in rounds_of(spans)}


async def test_sessions_of_one_expansion_link_to_the_same_span_and_only_the_sampled_ones_have_any() -> None:
    other = replace(DECODE, trace_id=7, span_id=8)
    unsampled = replace(DECODE, trace_id=9, sampled=False)
    contexts = (DECODE, other, unsampled)
    with receiving() as receiver:
        async with drafter(tracing_to(receiver)) as (_, channel, _):
            stream = Stream(channel)
            stream.send(*((number, traced(context)) for number, context in enumerate(contexts, 1)))
            stream.send((4, replace(traced(), traceparent="")), (5, replace(traced(), traceparent="nonsense")))
            for number in range(1, 6):
                await stream.grown(number)
                stream.send((number, Close()))
            await stream.close()
    spans = receiver.spans
    batches = named(spans, "expansion")
    traces = {span.trace_id for span in spans} - {batch.trace_id for batch in batches}
    assert traces == {f"{context.trace_id:032x}" for context in (DECODE, other)}
    first = min(batches, key=lambda batch: batch.start_ns)
    linked = [span.trace_id for span in named(spans, "spec_grow") if span.links == ((first.trace_id, first.span_id),)]
    assert sorted(linked) == sorted(traces)
    assert first.attributes["sessions"] >= 3


@pytest.mark.parametrize(("level", "names"), [(2, {"spec_draft"}), (1, set[str]())])
async def test_a_lower_level_has_fewer_spans(level: int, names: set[str]) -> None:
    with receiving() as receiver:
        async with drafter(tracing_to(receiver, level=level)) as (_, channel, _):
            talk = Talk(Stream(channel))
            await talk.run(traced())
            await talk.stream.close()
    assert {span.name for span in receiver.spans} == names
    assert [span.attributes["grown"] for span in rounds_of(receiver.spans)] == (talk.grown if names else [])


async def test_a_level_that_changes_holds_from_the_next_commits_on_and_a_round_once_begun_is_told() -> None:
    with receiving() as receiver:
        async with drafter(tracing_to(receiver, level=1)) as (server, channel, _):
            talk = Talk(Stream(channel))
            await talk.open(traced())
            server.tracing.apply(TraceChanges(level=2))
            await talk.commit(0, 1)
            server.tracing.apply(TraceChanges(level=0))
            await talk.commit(0, 1)
            await talk.stream.close()
    assert [span.attributes["round"] for span in rounds_of(receiver.spans)] == [1]


async def test_a_coordinators_order_of_what_to_trace_is_obeyed() -> None:
    script = Script()
    with receiving() as receiver:
        settings = tracing_to(receiver, level=0).model_copy
        async with coordinating(script) as at, drafter(settings(update={"coordinator": at})) as (server, _, _):
            assert isinstance(await script.next_report(), Register)
            script.directives.put_nowait(TracingOrder(TraceChanges(level=3)))
            await eventually(lambda: server.tracing.wants(3))


ENDS = {
    "refused": "number is 9",
    "opened twice": "open already",
    "broken off": "stream of its verifier is over",
    "handed back": "going away",
}


@pytest.mark.parametrize("end", ENDS)
async def test_however_a_session_ends_its_span_ends_and_says_why(end: str) -> None:
    with receiving() as receiver:
        settings = tracing_to(receiver).model_copy(update={"drain_s": 0.05})
        async with drafter(settings) as (server, channel, task):
            talk = Talk(Stream(channel))
            await talk.open(traced())
            match end:
                case "refused":
                    talk.stream.send((1, Commit(9, 0, (1,))))
                    await talk.stream.refused(1)
                case "opened twice":
                    talk.stream.send((1, traced()))
                    await talk.stream.refused(1)
                case "broken off":
                    talk.stream.break_off()
                    await asyncio.to_thread(receiver.named, "spec_draft")
                case _:
                    server.leave()
                    await asyncio.wait({task}, timeout=WAIT_S)
    (span,) = named(receiver.spans, "spec_draft")
    assert span.failed
    assert ENDS[end] in span.sentence
    check_parts(receiver.spans)


async def test_a_session_that_is_refused_at_once_has_no_span() -> None:
    with receiving() as receiver:
        async with drafter(tracing_to(receiver).model_copy(update={"max_sessions": 1})) as (_, channel, _):
            stream = Stream(channel)
            stream.send((1, open_event(PROMPT)), (2, traced()))
            await stream.refused(2)
            await stream.close()
    assert receiver.spans == []


async def test_a_scrape_has_the_numbers_of_what_was_done(caplog: pytest.LogCaptureFixture) -> None:
    settings = NGRAM.model_copy(update={"metrics_listen": "127.0.0.1:0"})
    with caplog.at_level("INFO"), receiving() as receiver:
        async with drafter(tracing_to(receiver, settings)) as (_, channel, _):
            (url,) = re.findall(r"http://\S+/metrics", caplog.text)
            talk = Talk(Stream(channel))
            talk.stream.send((2, open_event(PROMPT)), (2, Commit(9, 0, (1,))))
            await talk.stream.refused(2)
            await talk.run(traced())
            talk.stream.send((3, traced()))
            await talk.stream.grown(3)
            scraped = await asyncio.to_thread(sums, url)
    spans = receiver.spans
    assert scraped["specsplit_open_sessions"] == scraped["specsplit_open_streams"] == 1
    assert scraped["specsplit_commits_applied_total"] == 3
    assert scraped["specsplit_committed_nodes_total"] == 1
    assert scraped["specsplit_pushed_nodes_total"] == total(rounds_of(spans), "grown")
    assert scraped["specsplit_expanded_nodes_total"] == total(rounds_of(spans), "expanded")
    expansions = named(spans, "expansion")
    seconds = sum(span.end_ns - span.start_ns for span in expansions) / 1e9
    assert scraped["specsplit_expansions_total"] == scraped["specsplit_draft_time_seconds_count"] == len(expansions)
    assert scraped["specsplit_draft_time_seconds_sum"] == pytest.approx(seconds, abs=1e-6)
    assert scraped["specsplit_refusals_total"] == 1
    assert scraped["specsplit_kv_pages"] == 0


class CountingClock(ManualClock):
    """Counts how often it is read."""

    readings = 0

    def now(self) -> float:
        self.readings += 1
        self.advance(1.0)
        return super().now()


@dataclass
class Cycles:
    """An outbox that keeps what is told of cycles."""

    told: list[Cycle] = field(default_factory=list[Cycle])

    def deliver(self, outgoing: Outgoing, cycle: Cycle | None) -> None:
        if cycle is not None:
            self.told.append(cycle)


def engine_over(
    proposer: TableProposer, rounds: Rounds, clock: Clock | None = None, on_failed: Callable[[], None] = lambda: None
) -> tuple[Engine, list[Cycle]]:
    table, cycles = table_of(proposer, survival=0.2, max_sessions=64), Cycles()
    table.rounds = rounds
    return Engine(table, clock or ManualClock(), cycles, on_failed), cycles.told


def work(engine: Engine, sessions: int) -> None:
    """Open and commit so many sessions, and stop."""
    opened = replace(open_event([2]), traceparent=DECODE.traceparent)
    events = [(session, event) for session in range(sessions) for event in (opened, Commit(1, 0, (3,)))]
    engine.receive(engine.open_stream(), events)
    engine.start()
    engine.stop()


def all_of_it(level: int, parent: TraceContext | None) -> bool:
    return parent is not None


def test_without_tracing_nothing_is_made_for_a_session() -> None:
    engine, cycles = engine_over(TableProposer(lambda _: {0: 0.5}), Rounds(), CountingClock())
    work(engine, sessions=3)
    assert cycles
    for cycle in cycles:
        assert cycle.rounds == ()
        assert cycle.expansion is not None
        assert (cycle.expansion.num_sessions, cycle.expansion.shares) == (3, ())
        assert cycle.expansion.ended > cycle.expansion.began


def test_tracing_reads_the_clock_as_often_for_fifty_sessions_as_for_none() -> None:
    clock = CountingClock()
    engine, cycles = engine_over(TableProposer(lambda _: {0: 0.5}), Rounds(all_of_it), clock)
    work(engine, sessions=50)
    expansions = [cycle.expansion for cycle in cycles if cycle.expansion]
    assert len(expansions[0].shares) == 50
    assert clock.readings <= 2 * len(expansions) + 3  # twice a cycle; once if nothing came of it; once at the end
    ends = [(round_.commits, round_.error) for cycle in cycles for round_ in cycle.rounds]
    assert ends == [(0, None)] * 50 + [(1, "the drafter has stopped")] * 50


class Broken(TableProposer):
    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[Children | None]:
        raise RuntimeError("the device is gone")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_fails_says_so_and_ends_the_rounds() -> None:
    failed = threading.Event()
    engine, cycles = engine_over(Broken(lambda _: {}), Rounds(all_of_it), on_failed=failed.set)
    work(engine, sessions=1)
    assert failed.is_set()
    ends = [(round_.commits, round_.error) for cycle in cycles for round_ in cycle.rounds]
    assert ends == [(0, None), (1, "the drafter's engine failed")]
