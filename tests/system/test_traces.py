"""The contract of docs/traces.md: what real processes export, for every kind of drafter at every level, against the table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Result
from specsplit.observe.span_table import DECODE_CALL, ENGINE_CALL, SPANS, SpanRow, problems_of, row, rows_at
from specsplit.values import DrafterKind, TraceChanges
from tests.support.drafting import POCKET_KINDS
from tests.support.otlp import ReceivedSpan, Receiver, receiving
from tests.support.slow import slowly
from tests.system.conftest import as_soon_as, empty, eventually

TARGET = Path("models/pocket/target")
REQUESTS, TOKENS = 3, 24
BATCHES = {"step", "expansion"}
ON_ITS_WAY_S = 0.2
"""So long at most is a directive on its way to a member that has time for its own reports."""
QUIET_S = 1.2
"""Longer than two batches of spans of one process are apart."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


@pytest.fixture(scope="module")
def cluster(receiver: Receiver) -> Iterator[LocalCluster]:
    """A drafter of every kind; all processes export to the receiver."""
    traced = {"trace_endpoint": receiver.address, "trace_level": 0}
    paced = {"paced_step_base_ms": 10.0}
    drafts = drafts_beside(TARGET)
    kinds = POCKET_KINDS
    with LocalCluster(
        TARGET, drafts, drafters=kinds, coordinator=traced, verifier={**traced, **paced}, drafter=traced
    ) as started:
        yield started


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    return [
        tokenizer.encode(text)
        for text in ("def read(path):\n    with", "class Stack:\n    def", "import os\n\ndef main(")
    ]


def at_level(cluster: LocalCluster, level: int) -> None:
    """Every service traces at `level`, and has been told so before this returns."""
    with cluster.client() as client:
        told = client.set_tracing(TraceChanges(level=level))
        assert told.members == len(POCKET_KINDS) + 1
        there = time.monotonic() + ON_ITS_WAY_S
        as_soon_as(lambda: have_reported(client, since=there))


def have_reported(client: Client, since: float) -> bool:
    """True if every member has, since a time of this machine's clock."""
    ago_ms = (time.monotonic() - since) * 1000
    return all(member.silent_ms < ago_ms for member in client.cluster().members)


def generate(cluster: LocalCluster, prompts: Sequence[list[int]], drafters: Sequence[str]) -> dict[str, list[Result]]:
    """A run of three requests for each kind of drafter, all at once."""
    with cluster.client() as client, ThreadPoolExecutor(REQUESTS * len(drafters)) as pool:
        started = {
            drafter: [
                pool.submit(client.generate, prompt, max_tokens=TOKENS, ignore_eos=True, drafter=drafter)
                for prompt in prompts
            ]
            for drafter in drafters
        }
        return {drafter: [future.result() for future in futures] for drafter, futures in started.items()}


def exported(receiver: Receiver, requests: int, since: int) -> list[ReceivedSpan]:
    """What came for the last run: complete once every root is there and nothing has come for a while."""
    root = "/specsplit.v1.CoordinatorService/Generate"
    receiver.wait_for(lambda spans: sum(span.name == root for span in spans[since:]) >= requests)
    before = -1
    while before != len(receiver.spans):
        before = len(receiver.spans)
        time.sleep(QUIET_S)
    return receiver.spans[since:]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("level", [2, *slowly(1, 3)])
def test_the_spans_are_those_of_the_table(
    cluster: LocalCluster, receiver: Receiver, prompts: list[list[int]], level: int
) -> None:
    at_level(cluster, level)
    since = len(receiver.spans)
    results = generate(cluster, prompts, POCKET_KINDS)
    spans = exported(receiver, REQUESTS * len(POCKET_KINDS), since)
    at_level(cluster, 0)

    by_id = {(span.trace_id, span.span_id): span for span in spans}
    assert len(by_id) == len(spans), "every span has an id of its own"
    for span in spans:
        assert problems_of(row_of(span), span.attributes.items()) == [], span
        assert span.end_ns >= span.start_ns
        assert not span.failed, span
        check_place(span, by_id)
    traces = {span.attributes["gen_ai.response.id"]: span.trace_id for span in spans if span.name == "generate"}
    assert len(traces) == len({span.trace_id for span in spans if span.name not in BATCHES}), "one trace per request"
    for kind in POCKET_KINDS:
        of_kind = {traces[result.done.request_id] for result in results[kind]}
        assert len(of_kind) == REQUESTS
        check_kind(kind, level, [span for span in spans if span.trace_id in of_kind], by_id)
        for result in results[kind]:
            trace = traces[result.done.request_id]
            check_counts([span for span in spans if span.trace_id == trace], result, level)


def check_kind(
    kind: DrafterKind, level: int, spans: Sequence[ReceivedSpan], by_id: dict[tuple[str, str], ReceivedSpan]
) -> None:
    """The spans of three requests and the batches they link to are all that the table has for this kind and level, and no other."""
    batches = {by_id[link].span_id: by_id[link] for span in spans for link in span.links}
    seen = {row_of(span).place for span in (*spans, *batches.values())}
    # How the threads fell decides whether a step was waited for; everything else is there in every run.
    sometimes = {"verifier internal spec_wait"}
    # A request comes in one of two protocols, and these do not come from a gateway.
    expected = {each.place for each in rows_at(level, kind)} - {
        f"{each} server {ENGINE_CALL}" for each in ("coordinator", "verifier")
    }
    # Nor has any of their sessions a call of its own.
    expected -= {f"coordinator client {DECODE_CALL}", f"verifier server {DECODE_CALL}"}
    assert seen - sometimes == expected - sometimes
    assert {span.attributes["kind"] for span in spans if span.name == "spec_draft"} == (
        {kind.value} if level > 1 else set()
    )


def row_of(span: ReceivedSpan) -> SpanRow:
    return row(span.service.removeprefix("specsplit-"), span.name, span.kind)


def check_place(span: ReceivedSpan, by_id: dict[tuple[str, str], ReceivedSpan]) -> None:
    """Its parent and its link are those that the table says."""
    mine = row_of(span)
    if mine.parent is None:
        assert span.parent_id == ""
    else:
        parent = by_id.get((span.trace_id, span.parent_id))
        assert parent is not None, f"{mine.place} hangs below nothing that came"
        assert row_of(parent).place == mine.parent
    linked = [by_id[link] for link in span.links]
    assert [row_of(each).place for each in linked] == ([] if mine.link is None else [mine.link])


def check_counts(spans: Sequence[ReceivedSpan], result: Result, level: int) -> None:
    """As many spans of one request as its reply says."""
    names = [span.name for span in spans]
    for once in ("generate", "tokenize", "queue", "prefill", "decode"):
        assert names.count(once) == 1
    verified = sorted((span for span in spans if span.name == "spec_verify"), key=lambda span: span.start_ns)
    if level == 1:
        assert not verified
        return
    assert [span.attributes["step"] for span in verified] == [*range(1, result.speculation.steps + 1)]
    for name in ("num_correct_drafts", "accepted_tokens"):
        assert sum(span.attributes[name] for span in verified) == result.speculation.accepted
    assert sum(span.attributes["num_draft_tokens"] - 1 for span in verified) == result.speculation.drafted
    assert sum(span.attributes["hit"] for span in verified) == result.speculation.hits


@pytest.mark.slow
def test_off_exports_nothing(cluster: LocalCluster, receiver: Receiver, prompts: list[list[int]]) -> None:
    """Spans leave in order: once those have come that were made afterwards, none of before is on its way."""
    kinds = ["ngram", "eagle3"]
    at_level(cluster, 0)
    since = len(receiver.spans)
    generate(cluster, prompts, kinds)
    with cluster.client() as client:
        eventually(lambda: empty(client.cluster()))
    on_ns = time.time_ns()
    at_level(cluster, 2)
    generate(cluster, prompts, kinds)
    spans = exported(receiver, REQUESTS * len(kinds), since)
    assert [span for span in spans if span.start_ns < on_ns] == []
    assert {row_of(span).service for span in spans} == {"coordinator", "verifier", "drafter"}
    assert {span.attributes["kind"] for span in spans if span.name == "spec_draft"} == set(kinds)


def test_every_row_of_the_table_is_made_somewhere() -> None:
    assert {each.place for level in (1, 2, 3) for kind in DrafterKind for each in rows_at(level, kind)} == {
        each.place for each in SPANS
    }
