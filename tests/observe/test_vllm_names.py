"""Metrics under vLLM's names: what vLLM's own counting gives for the same steps, in its labels and its format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specsplit.membership import Cluster
from specsplit.observe.exposition import expose
from specsplit.observe.metric import Service
from specsplit.observe.metrics import CoordinatorMetrics, Metrics, VerifierMetrics
from specsplit.observe.vllm_table import DIFFERENT, VLLM_TABLE
from specsplit.values import Load
from tests.observe.test_metrics import Record, Step, fetch

ENGINE = {"model_name": "target", "engine": "0"}


def scrape(metrics: Metrics) -> Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]:
    """Values by name of the sample and by labels in order, of those with a name of vLLM's; in the text format that vLLM has."""
    metrics.refresh()
    registry = CollectorRegistry()
    registry.register(metrics.instruments)
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                found.setdefault(sample.name, {})[tuple(sample.labels.items())] = sample.value
    return found


def only(samples: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]], name: str) -> float:
    ((labels, value),) = samples[name].items()
    assert dict(labels) == ENGINE
    return value


class SpecDecodingStats:
    """Counts as vLLM's class of this name does (v1/spec_decode/metrics.py), a request at a time; one without drafts is not told to it."""

    def __init__(self) -> None:
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self.accepted_tokens_per_pos: dict[int, int] = {}

    def observe(self, draft_tokens: int, accepted_tokens: int) -> None:
        if not draft_tokens:
            return
        self.drafts += 1
        self.draft_tokens += draft_tokens
        self.accepted_tokens += accepted_tokens
        for position in range(accepted_tokens):
            self.accepted_tokens_per_pos[position] = self.accepted_tokens_per_pos.get(position, 0) + 1


@st.composite
def trees(draw: st.DrawFn) -> Step:
    """A session's step: a tree of so many nodes and so deep, of which a path was accepted; or no drafts."""
    depth = draw(st.integers(0, 20))
    accepted = draw(st.integers(0, depth))
    drafted = draw(st.integers(depth, depth * 3))
    return Step(drafted=drafted, depth=depth, accepted=accepted, committed=accepted + 1, speculates=depth > 0)


@given(st.lists(st.lists(trees(), min_size=1, max_size=4), max_size=8))
def test_speculation_is_counted_as_vllm_counts_it(steps: Sequence[Sequence[Step]]) -> None:
    metrics, theirs = VerifierMetrics(on=True), SpecDecodingStats()
    metrics.under_vllm_names("target")
    for sessions in steps:
        metrics.step(Record(sessions=list(sessions)))
        for session in sessions:
            theirs.observe(session.drafted, session.accepted)
    samples = scrape(metrics)
    assert only(samples, "vllm:spec_decode_num_drafts_total") == theirs.drafts
    assert only(samples, "vllm:spec_decode_num_draft_tokens_total") == theirs.draft_tokens
    assert only(samples, "vllm:spec_decode_num_accepted_tokens_total") == theirs.accepted_tokens
    positions = samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert all({"model_name", "engine", "position"} == {name for name, _ in labels} for labels in positions)
    ours = {int(dict(labels)["position"]): value for labels, value in positions.items()}
    assert ours == dict.fromkeys(range(8), 0) | theirs.accepted_tokens_per_pos


def test_requests_pages_and_first_tokens_are_shown_by_who_knows_them() -> None:
    verifier, coordinator = VerifierMetrics(on=True), CoordinatorMetrics(on=True)
    verifier.under_vllm_names("target")
    verifier.watch(lambda: Load(sessions=3, waiting=1, free_pages=24, total_pages=64))
    samples = scrape(verifier)
    assert only(samples, "vllm:num_requests_running") == 2
    assert only(samples, "vllm:num_requests_waiting") == 1
    assert only(samples, "vllm:kv_cache_usage_perc") == pytest.approx(40 / 64)
    coordinator.under_vllm_names("target")
    coordinator.watch(lambda: Cluster((), queued=5, running=2))
    coordinator.first_token(0.2)
    samples = scrape(coordinator)
    assert only(samples, "vllm:num_requests_waiting") == 5
    assert only(samples, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.2)
    assert only(samples, "vllm:time_to_first_token_seconds_count") == 1


def test_pages_that_are_not_there_are_not_used() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.under_vllm_names("target")
    metrics.watch(Load)
    assert only(scrape(metrics), "vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain",
        "application/openmetrics-text; version=1.0.0",
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4",
        "application/openmetrics-text;version=1.0.0;escaping=underscores,*/*;q=0.1",
    ],
)
async def test_names_keep_their_colon_in_every_format_that_prometheus_asks_for(accept: str) -> None:
    metrics = VerifierMetrics(on=True)
    metrics.under_vllm_names("target")
    with expose(metrics, "127.0.0.1:0") as bound:
        _, text = await asyncio.to_thread(fetch, bound, accept)
    names = {line.partition("{")[0] for line in text.splitlines() if line.startswith("vllm")}
    assert {
        name for metric in VLLM_TABLE if metric.services != (Service.COORDINATOR,) for name in metric.series
    } <= names


def test_the_rank_is_the_engine() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.under_vllm_names("target", 3)
    labels = {labels for series in scrape(metrics).values() for labels in series}
    assert {dict(each)["engine"] for each in labels} == {"3"}


@pytest.mark.parametrize("metrics", [CoordinatorMetrics(on=True), VerifierMetrics(on=True)])
def test_all_of_the_table_is_exposed_when_it_is_wished_for_and_nothing_otherwise(metrics: Metrics) -> None:
    assert scrape(metrics) == {}
    assert isinstance(metrics, CoordinatorMetrics | VerifierMetrics)
    metrics.under_vllm_names("target")
    service = Service.COORDINATOR if isinstance(metrics, CoordinatorMetrics) else Service.VERIFIER
    wanted = {name for metric in VLLM_TABLE if service in metric.services for name in metric.series}
    assert {name for name in scrape(metrics) if not name.endswith("_created")} == wanted


def test_what_means_something_else_has_no_name_of_vllms() -> None:
    assert not {metric.name for metric in VLLM_TABLE} & set(DIFFERENT)
