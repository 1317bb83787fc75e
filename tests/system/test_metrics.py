"""A real cluster under load: its plan is changed while it runs, its numbers are scraped, and a real Prometheus has data for everything."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.dashboards.expressions import check_expressions
from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.errors import SpecsplitError
from specsplit.values import PlanChanges
from tests.deploy.live import needs_prometheus, prometheus, query, recorded_gateway
from tests.support.scrape import Places, eventually

TARGET = Path("models/pocket/target")
KINDS = ("eagle3", "ngram")


@pytest.fixture(scope="module")
def places() -> Places:
    return Places()


@pytest.fixture(scope="module")
def cluster(places: Places) -> Iterator[LocalCluster]:
    on: dict[str, object] = {"metrics_listen": "127.0.0.1:0"}
    named = {**on, "vllm_metrics": True}
    paced = {
        **named,
        "adaptive": "static",
        "paced_step_base_ms": 20.0,
    }  # time for the drafters, whatever this machine is doing
    with LocalCluster(
        TARGET,
        drafts_beside(TARGET),
        drafters=KINDS,
        coordinator=named,
        verifier=paced,
        drafter=on,
        listener=places.hear,
    ) as started:
        yield started


VLLM_QUERIES = (
    'sum(rate(vllm:spec_decode_num_accepted_tokens_total{model_name="target"}[10s]))'
    ' / sum(rate(vllm:spec_decode_num_draft_tokens_total{model_name="target"}[10s]))',
    "1 + sum(rate(vllm:spec_decode_num_accepted_tokens_total[10s])) / sum(rate(vllm:spec_decode_num_drafts_total[10s]))",
    "sum by (position) (rate(vllm:spec_decode_num_accepted_tokens_per_pos_total[10s]))"
    " / ignoring(position) group_left sum(rate(vllm:spec_decode_num_drafts_total[10s]))",
    'vllm:num_requests_running{model_name="target", engine="0"}',
    'vllm:num_requests_waiting{model_name="target", engine="0"}',
    'vllm:kv_cache_usage_perc{model_name="target"}',
    'histogram_quantile(0.99, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket{model_name="target"}[10s])))',
    'histogram_quantile(0.99, sum by(le) (rate(vllm:inter_token_latency_seconds_bucket{model_name="target"}[10s])))',
)
"""What dashboards that were made for vLLM ask."""
FULL = PlanChanges(num_steps=5, num_draft_tokens=16, draft_ahead=False, wait_budget_us=2_000_000)
"""Steps take full trees, however busy the machine."""


@contextmanager
def load(cluster: LocalCluster) -> Iterator[None]:
    """Two requests of each kind of drafter at any time, and now and then one that fails."""
    over = threading.Event()

    def ask(kind: str) -> None:
        with cluster.client() as client:
            while not over.is_set():
                client.generate("def main(argv):\n    for", max_tokens=64, ignore_eos=True, drafter=kind)

    def fail() -> None:
        with cluster.client() as client:
            while not over.wait(0.3):
                with pytest.raises(SpecsplitError):
                    client.generate("x", max_tokens=100_000)

    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(ask, kind) for kind in (*KINDS, *KINDS)] + [pool.submit(fail)]
        try:
            yield
        finally:
            over.set()
    for future in asked:
        future.result()


def accepted_more_than(tokens: int, places: Places) -> tuple[float, float]:
    """Session steps so far with a longer accept_length, and all of those with drafts."""
    now = places.scraped("verifier-0")
    steps = now("specsplit_accept_length_count")
    return steps - now("specsplit_accept_length_bucket", le=f"{tokens:.1f}"), steps


@pytest.mark.slow
def test_a_plan_that_changes_under_load_is_seen_in_the_metrics(cluster: LocalCluster, places: Places) -> None:
    def plan_is(num_steps: float, num_draft_tokens: float) -> bool:
        now = places.scraped("verifier-0")
        return (now("specsplit_spec_num_steps"), now("specsplit_spec_num_draft_tokens")) == (
            num_steps,
            num_draft_tokens,
        )

    def switches() -> float:
        return places.scraped("verifier-0")("specsplit_plan_switches_total")

    def full_trees_bring_more() -> None:
        before = accepted_more_than(2, places)[0]
        eventually(lambda: accepted_more_than(2, places)[0] > before, "a full tree brings more than 2 tokens")

    with load(cluster), cluster.client() as client:
        eventually(lambda: plan_is(5, 16), "the verifier's own plan is in force")
        before = switches()
        client.set_plan(FULL)
        eventually(lambda: switches() == before + 1, "every step waits for a full tree")
        full_trees_bring_more()

        client.set_plan(PlanChanges(num_steps=1, num_draft_tokens=2))
        eventually(lambda: plan_is(1, 2), "the new plan is in force")
        longer, steps = accepted_more_than(2, places)
        eventually(lambda: accepted_more_than(2, places)[1] >= steps + 20, "20 steps are taken under the new plan")
        assert accepted_more_than(2, places)[0] == longer, "a tree of one draft brings 2 tokens at most"

        client.set_plan(PlanChanges(num_draft_tokens=1))
        eventually(lambda: plan_is(0, 0), "0 drafts is a plan")
        drafted = places.scraped("verifier-0")("specsplit_drafted_tokens_total")
        time.sleep(1)
        assert places.scraped("verifier-0")("specsplit_drafted_tokens_total") == drafted

        client.set_plan(FULL, reset=True)
        eventually(lambda: plan_is(5, 16), "the trees are full again")
        full_trees_bring_more()
        client.set_plan(reset=True)
        eventually(lambda: switches() == before + 5, "the verifier's own plan is in force again")


def test_the_numbers_are_those_of_the_replies(cluster: LocalCluster, places: Places) -> None:
    with cluster.client() as client:
        time.sleep(0.5)
        before = {name: places.scraped(name) for name in ("coordinator", "verifier-0", "eagle3-0")}
        result = client.generate("import os\n\ndef", max_tokens=48, ignore_eos=True, drafter="eagle3")
        time.sleep(0.5)
        after = {name: places.scraped(name) for name in before}

    def gained(name: str, metric: str) -> float:
        return after[name](metric) - before[name](metric)

    assert gained("coordinator", "specsplit_requests_finished_total") == 1
    assert gained("coordinator", "specsplit_time_to_first_token_seconds_count") == 1
    assert gained("verifier-0", "specsplit_generated_tokens_total") == 48
    assert gained("verifier-0", "specsplit_session_steps_total") == result.speculation.steps
    assert gained("verifier-0", "specsplit_drafted_tokens_total") == result.speculation.drafted
    assert gained("verifier-0", "specsplit_accepted_tokens_total") == result.speculation.accepted
    assert gained("verifier-0", "specsplit_hits_total") == result.speculation.hits
    assert gained("verifier-0", "specsplit_misses_total") == result.speculation.misses
    assert gained("eagle3-0", "specsplit_expansions_total") > 0
    assert gained("verifier-0", "vllm:spec_decode_num_draft_tokens_total") == result.speculation.drafted
    assert gained("verifier-0", "vllm:spec_decode_num_accepted_tokens_total") == result.speculation.accepted
    assert gained("verifier-0", "vllm:spec_decode_num_accepted_tokens_per_pos_total") == result.speculation.accepted
    assert 0 < gained("verifier-0", "vllm:spec_decode_num_drafts_total") <= result.speculation.steps
    assert gained("coordinator", "vllm:time_to_first_token_seconds_count") == 1
    assert gained("verifier-0", "vllm:inter_token_latency_seconds_count") == result.speculation.steps - 1


@pytest.mark.slow
@needs_prometheus
@pytest.mark.timeout(180)
def test_every_expression_of_every_panel_and_rule_has_data(
    cluster: LocalCluster, places: Places, tmp_path: Path
) -> None:
    jobs = {
        f"specsplit-{service}": [place for name, place in places.found.items() if name.split("-")[0] in names]
        for service, names in (("coordinator", ["coordinator"]), ("verifier", ["verifier"]), ("drafter", KINDS))
    }
    problems = ["nothing was asked yet"]
    with (
        load(cluster),
        recorded_gateway() as gateway,
        prometheus({**jobs, "specsplit-gateway": [gateway]}, tmp_path) as url,
    ):
        until = time.monotonic() + 90
        while problems and time.monotonic() < until:
            time.sleep(3)
            problems = check_expressions(url, window="10s")
            problems += [f"no data: {each}" for each in VLLM_QUERIES if not _numbers(url, each)]
    assert problems == []


def _numbers(url: str, expression: str) -> list[float]:
    """What a Prometheus answers, without NaN."""
    found = [float(series["value"][1]) for series in query(url, "query", query=expression)["result"]]
    return [number for number in found if not math.isnan(number)]
