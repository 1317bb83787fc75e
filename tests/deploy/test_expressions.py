"""Every expression of every panel and rule has data on a real Prometheus, here over processes whose numbers are made up or recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from scripts.dashboards.expressions import check_expressions, unfiltered
from specsplit.membership import Cluster, Member
from specsplit.observe.exposition import expose
from specsplit.observe.metrics import CoordinatorMetrics, DrafterMetrics, VerifierMetrics
from specsplit.records import DraftCounters, Eager, GraphStatistics, PlanRecord, StreamStatistics
from specsplit.values import (
    Arm,
    DrafterInfo,
    DrafterKind,
    Estimate,
    FinishReason,
    Load,
    Miss,
    ModelInfo,
    Plan,
    Vocabulary,
)
from tests.deploy.live import grown, needs_prometheus, prometheus, query, recorded_gateway
from tests.observe.test_metrics import GOODPUT, TRACE, Record, Step, Totals

PATIENCE_S = 60


def test_comparisons_of_a_rule_give_0_or_1_and_matchers_stay_as_they_are() -> None:
    assert unfiltered('a{b!="c", d=~"e"} / f > 0.9 and on () max(g) >= 1') == (
        'a{b!="c", d=~"e"} / f > bool 0.9 and on () max(g) >= bool 1'
    )
    assert unfiltered("a > bool 1") == "a > bool 1"


def test_counters_and_histograms_of_a_recording_grow_and_gauges_stay() -> None:
    lines = [
        "# TYPE a counter",
        'a{b="1 c"} 2',
        "# TYPE d gauge",
        "d 3",
        "# TYPE e histogram",
        'e_bucket{le="1"} 1',
        "e_sum 0.5",
    ]
    assert grown("\n".join(lines), 4).splitlines() == [
        "# TYPE a counter", 'a{b="1 c"} 8.0', "# TYPE d gauge", "d 3", "# TYPE e histogram", 'e_bucket{le="1"} 4.0', "e_sum 2.0",
    ]  # fmt: skip


class Cast:
    """A coordinator, a verifier and two drafters without anything behind them."""

    def __init__(self) -> None:
        self.coordinator = CoordinatorMetrics(on=True)
        self.verifier = VerifierMetrics(on=True)
        self.drafters = [DrafterMetrics(kind, on=True) for kind in (DrafterKind.NGRAM, DrafterKind.EAGLE3)]
        self.turns = 0
        members = (
            Member("v", "h:1", ModelInfo("m", Vocabulary(512), 512), 4),
            Member("d", "h:2", DrafterInfo(DrafterKind.NGRAM, "", None, 512), 4),
        )
        self.coordinator.watch(lambda: Cluster(members, queued=1, running=2))
        self.verifier.watch(lambda: Load(2, 1, 24, 64))
        self.verifier.watch_streams(lambda: [StreamStatistics(*(self.turns * n for n in (1, 2, 300, 400, 5, 6, 100)))])
        estimate = Estimate(2.5, 0.02, 1e-4, 120.0, 100.0)
        self.verifier.watch_plan(lambda: PlanRecord(Plan(), self.turns, estimate), lambda: GOODPUT)
        self.verifier.watch_graphs(lambda: GraphStatistics(72, 1 << 30, 2 * self.turns, {Eager.SIZE: self.turns}))
        drafted = ("expansions", "drawn_expansions", "used_expansions", "commits", "committed_nodes")
        for drafter in self.drafters:
            drafter.watch(lambda: Totals(**dict.fromkeys(drafted, self.turns)))

    def turn(self) -> None:
        """A request, a step and an expansion."""
        self.turns += 1
        self.coordinator.placed(0.01, TRACE)
        self.coordinator.first_token(0.1, TRACE)
        self.coordinator.intervals(0.1, 3, TRACE)
        self.coordinator.finished(FinishReason.STOP, 0.3, TRACE)
        self.coordinator.failed("UNAVAILABLE")
        hit = Step(drafted=9, depth=9, accepted=8, committed=9, hit=True)
        miss = Step(drafted=6, depth=3, accepted=1, committed=2, hit=False, miss=Miss.WRONG)
        drafts = DraftCounters(round_trips_s=[0.002])
        self.verifier.step(
            Record(sessions=[hit, miss], prefill_tokens=3, drafts=drafts, arm=list(Arm)[self.turns % len(Arm)])
        )
        for drafter in self.drafters:
            drafter.expansion(0.001)


@asynccontextmanager
async def running(cast: Cast) -> AsyncIterator[Mapping[str, list[str]]]:
    """The cast at work: addresses by job."""

    async def work() -> None:
        while True:
            cast.turn()
            await asyncio.sleep(0.05)

    with ExitStack() as stack:
        jobs = {
            "specsplit-coordinator": [cast.coordinator],
            "specsplit-verifier": [cast.verifier],
            "specsplit-drafter": cast.drafters,
        }
        task = asyncio.create_task(work())
        try:
            yield {
                job: [stack.enter_context(expose(each, "127.0.0.1:0")) for each in metrics]
                for job, metrics in jobs.items()
            } | {"specsplit-gateway": [stack.enter_context(recorded_gateway())]}
        finally:
            task.cancel()


@needs_prometheus
@pytest.mark.slow
async def test_every_expression_has_data_and_exemplars_lead_to_traces(tmp_path: Path) -> None:
    async with running(Cast()) as targets:
        with prometheus(targets, tmp_path) as url:
            problems = ["never asked"]
            deadline = asyncio.get_running_loop().time() + PATIENCE_S
            while problems:
                assert asyncio.get_running_loop().time() < deadline, "\n".join(problems)
                await asyncio.sleep(1)
                problems = await asyncio.to_thread(check_expressions, url, "10s")
            name = "specsplit_time_to_first_token_seconds_bucket"
            found = await asyncio.to_thread(query, url, "query_exemplars", query=name, start="0", end="9999999999")
            assert {each["labels"]["trace_id"] for series in found for each in series["exemplars"]} == {TRACE}


@needs_prometheus
@pytest.mark.slow
async def test_what_has_no_data_is_named(tmp_path: Path) -> None:
    nobody = {f"specsplit-{service}": [] for service in ("coordinator", "verifier", "drafter", "gateway")}
    with prometheus(nobody, tmp_path) as url:
        problems = await asyncio.to_thread(check_expressions, url)
    assert any(problem.startswith("SpecsplitVerifierStuck: no series: rate(") for problem in problems)
    assert any(problem.startswith("specsplit / Overview, Tokens, A: no series: ") for problem in problems)
