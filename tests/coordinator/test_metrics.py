"""What a scrape of the coordinator says is what its callers were told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import grpc
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from smg_grpc_proto.generated import vllm_engine_pb2
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from specsplit.errors import DeadlineExceeded, Exhausted, SpecsplitError, Unavailable
from specsplit.rpc import dial
from specsplit.values import DrafterKind, FinishReason
from tests.support.otlp import receiving

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape(dict[str, float]):
    """Samples by name and labels, as `name{label="value"}`; 0 for what is not there."""

    def __missing__(self, key: str) -> float:
        return 0.0


async def scrape(cluster: Cluster, exemplars: dict[str, str] | None = None) -> Scrape:
    """What /metrics says now; the trace ids of the exemplars go into `exemplars`, by sample name."""
    return await asyncio.to_thread(
        _scrape, cluster.coordinator.service.metrics_address, {} if exemplars is None else exemplars
    )


def _scrape(address: str, exemplars: dict[str, str]) -> Scrape:
    with urlopen(Request(f"http://{address}/metrics", headers={"Accept": OPENMETRICS}), timeout=5) as answer:
        text = answer.read().decode()
    found = Scrape()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
            if sample.exemplar is not None:
                exemplars[sample.name] = sample.exemplar.labels["trace_id"]
    return found


@pytest.fixture
def start(start_cluster: StartCluster) -> Callable[..., Any]:
    async def start(**settings: object) -> Cluster:
        return await start_cluster(metrics_listen="127.0.0.1:0", **settings)

    return start


async def until(cluster: Cluster, sample: str, value: float) -> Scrape:
    """Scrape until `sample` is `value`: an end reaches the caller a moment before it is counted."""
    async with asyncio.timeout(60):
        while (found := await scrape(cluster))[sample] != value:
            await asyncio.sleep(0.01)
    return found


async def test_requests_and_their_times_are_those_of_the_replies(start: Callable[..., Any], say: Say) -> None:
    cluster = await start()
    await cluster.add_verifier(say((5, 6, 7), (8,), (9, 10)))
    await cluster.add_drafter(DrafterKind.NGRAM, "d1")
    results = [await cluster.client.generate("x") for _ in range(3)]
    assert [len(result.tokens) for result in results] == [6, 6, 6]
    found = await until(cluster, 'specsplit_requests_finished_total{reason="stop"}', 3)
    assert found["specsplit_time_to_first_token_seconds_count"] == 3
    assert found["specsplit_inter_token_latency_seconds_count"] == 3 * 3, "a burst of k tokens is k intervals"
    assert found["specsplit_queue_time_seconds_count"] == 3
    assert found["specsplit_request_duration_seconds_count"] == 3
    assert found["specsplit_request_duration_seconds_sum"] >= found["specsplit_time_to_first_token_seconds_sum"] > 0
    assert found['specsplit_members{role="verifier",state="serving"}'] == 1
    assert found['specsplit_members{role="drafter",state="serving"}'] == 1
    assert found["specsplit_running_requests"] == found["specsplit_queued_requests"] == 0


async def test_a_request_for_several_choices_is_one_request_with_the_intervals_of_each(
    start: Callable[..., Any], say: Say
) -> None:
    cluster = await start()
    await cluster.add_verifier(say((5, 6, 7), (8,), (9, 10)))
    await cluster.client.generate("x", n=2)
    found = await until(cluster, 'specsplit_requests_finished_total{reason="stop"}', 1)
    assert found["specsplit_inter_token_latency_seconds_count"] == 2 * 3
    for times in ("time_to_first_token", "queue_time", "request_duration"):
        assert found[f"specsplit_{times}_seconds_count"] == 1


async def test_what_ends_in_an_error_is_counted_by_its_status(start: Callable[..., Any], say: Say) -> None:
    cluster = await start(max_queue=0)
    with pytest.raises(Unavailable):
        await cluster.client.generate("x")
    with pytest.raises(SpecsplitError):
        await cluster.client.generate("x", drafter="eagle9")
    async with dial(cluster.address) as channel:
        gateway = VllmEngineStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="data_parallel_rank: "):
            await anext(aiter(gateway.Generate(vllm_engine_pb2.GenerateRequest(text="x", data_parallel_rank=0))))
    await cluster.add_verifier(say((5,), then_wait=True), max_sessions=1)
    with pytest.raises(DeadlineExceeded):
        await cluster.client.generate("x", timeout_s=0.5)
    await until(cluster, 'specsplit_requests_failed_total{code="deadline_exceeded"}', 1)
    async with aclosing(cluster.client.stream("x")) as stream:
        await anext(stream)
        assert (await scrape(cluster))["specsplit_running_requests"] == 1
        with pytest.raises(Exhausted):
            await cluster.client.generate("x")
    found = await until(cluster, 'specsplit_requests_failed_total{code="cancelled"}', 1)
    failed = {key.split('"')[1]: value for key, value in found.items() if "requests_failed_total" in key and value}
    assert failed == {
        "unavailable": 1,
        "invalid_argument": 1,
        "unimplemented": 1,
        "deadline_exceeded": 1,
        "resource_exhausted": 1,
        "cancelled": 1,
    }
    finished = [found[f'specsplit_requests_finished_total{{reason="{reason.value}"}}'] for reason in FinishReason]
    assert finished == [0, 0]


async def test_the_queue_is_seen_while_it_is_there_and_its_time_afterwards(start: Callable[..., Any], say: Say) -> None:
    cluster = await start()
    await cluster.add_verifier(say((5,), then_wait=True), max_sessions=1)
    async with aclosing(cluster.client.stream("x")) as first:
        await anext(first)
        second = asyncio.create_task(cluster.client.generate("x", timeout_s=30))
        found = await until(cluster, "specsplit_queued_requests", 1)
        assert found["specsplit_running_requests"] == 1
        assert found["specsplit_queue_time_seconds_count"] == 1
    await until(cluster, "specsplit_queue_time_seconds_count", 2)
    await until(cluster, "specsplit_queued_requests", 0)  # gauges are read a moment before counters
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_a_member_that_goes_without_a_word_is_counted_as_lost_and_one_that_drains_is_not(
    start: Callable[..., Any], say: Say
) -> None:
    cluster = await start()
    await cluster.add_verifier(say((5,)))
    await cluster.add_drafter(DrafterKind.NGRAM, "d1")
    members = cluster.coordinator.registry.drafters
    cluster.coordinator.registry.remove(members[0], "it was silent for 3.0 s")
    verifier = cluster.coordinator.registry.verifiers[0]
    cluster.coordinator.registry.drain(verifier)
    found = await scrape(cluster)
    assert found['specsplit_members{role="verifier",state="draining"}'] == 1
    cluster.coordinator.registry.remove(verifier, "its stream ended")
    found = await scrape(cluster)
    assert found['specsplit_members_lost_total{role="drafter"}'] == 1
    assert found['specsplit_members_lost_total{role="verifier"}'] == 0


async def test_exemplars_lead_to_the_traces_of_the_requests(start: Callable[..., Any], say: Say) -> None:
    with receiving() as receiver:
        cluster = await start(trace_endpoint=receiver.address)
        await cluster.add_verifier(say((5, 6), (7,)))
        await cluster.client.generate("x")
        exemplars: dict[str, str] = {}
        await until(cluster, "specsplit_request_duration_seconds_count", 1)
        await scrape(cluster, exemplars)
        await cluster.coordinator.stop()
        (generate,) = receiver.named("generate", 1)
    assert set(exemplars.values()) == {generate.trace_id}
    assert "specsplit_time_to_first_token_seconds_bucket" in exemplars


async def test_nobody_serves_metrics_unless_told_where(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,)))
    await cluster.client.generate("x")
    assert cluster.coordinator.service.metrics_address == ""
