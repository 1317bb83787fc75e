"""What is told to the metrics comes out of a scrape, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as older_text
from prometheus_client.samples import Sample

from specsplit.errors import InvalidRequest, PermissionDenied, Unauthenticated
from specsplit.membership import Cluster, Member
from specsplit.observe.exposition import expose
from specsplit.observe.instruments import Histogram
from specsplit.observe.metric import Kind, Metric, Service, steps_of_125
from specsplit.observe.metric_table import KIND, TABLE, metrics_of
from specsplit.observe.metrics import MOST_STEPS, CoordinatorMetrics, DrafterMetrics, Metrics, VerifierMetrics
from specsplit.records import (
    DraftCounters,
    DrafterStatistics,
    Eager,
    GraphStatistics,
    KVCounters,
    PlanRecord,
    StateBytes,
    StepRecord,
    StreamStatistics,
    TurnCosts,
)
from specsplit.rpc.catalogue import CODES, code_of
from specsplit.values import (
    Adaptive,
    Arm,
    Control,
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

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TRACE = "0af7651916cd43dd8448eb211c80319c"
VOCABULARY = Vocabulary(512)
GOODPUT = Control(Adaptive.GOODPUT, 8)


@dataclass(frozen=True, kw_only=True)
class Record(StepRecord):
    began: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    waited_us: float = 1000.0
    forward_us: float = 5000.0
    host_us: float = 500.0
    tokens: int = 40
    kv_tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0


@dataclass(frozen=True)
class Step:
    drafted: int = 0
    depth: int = 0
    accepted: int = 0
    committed: int = 1
    speculates: bool = True
    hit: bool | None = None
    miss: Miss | None = None
    shown_plan: Plan = field(default_factory=Plan)


@dataclass(frozen=True)
class Totals(DrafterStatistics):
    sessions: int = 3
    streams: int = 2
    expansions: int = 100
    expanded_nodes: int = 800
    pushed_nodes: int = 1600
    commits: int = 90
    committed_nodes: int = 180
    used_pages: int = 30
    total_pages: int = 64
    expansion_ms: float = 1.0


def fetch(bound: str, accept: str) -> tuple[str, str]:
    with urlopen(Request(f"http://{bound}/metrics", headers={"Accept": accept}), timeout=10) as reply:
        return str(reply.headers["Content-Type"]), reply.read().decode()


def scrape(metrics: Metrics) -> list[Sample]:
    """What a scrape gives, without HTTP."""
    metrics.refresh()
    registry = CollectorRegistry()
    registry.register(metrics.instruments)
    return parsed(generate_latest(registry).decode())


def parsed(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def values(samples: Sequence[Sample], name: str) -> Mapping[tuple[str, ...], float]:
    return {tuple(s.labels.values()): s.value for s in samples if s.name == name}


def value(samples: Sequence[Sample], name: str, *labels: str) -> float:
    return values(samples, name)[labels]


def every() -> list[Metrics]:
    return [CoordinatorMetrics(on=True), VerifierMetrics(on=True), DrafterMetrics(DrafterKind.EAGLE3, on=True)]


def test_names_and_buckets_of_the_table_are_sound() -> None:
    assert len({metric.name for metric in TABLE}) == len(TABLE)
    for metric in TABLE:
        assert metric.name.startswith("specsplit_") and not metric.name.endswith(("_total", "_count", "_sum"))
        assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        assert not (metric.exemplars and metric.kind is not Kind.HISTOGRAM), metric.name
        assert metric.help.endswith("."), metric.name


def test_no_metric_has_many_series() -> None:
    for metric in TABLE:
        series = 1
        for label in metric.labels:
            series *= len(label.values)
        assert series <= 12, metric.name


def test_the_codes_are_those_of_the_catalogue() -> None:
    (label,) = next(metric for metric in TABLE if metric.name == "specsplit_requests_failed").labels
    of_callers = {code_of(error).name.lower() for error in (Unauthenticated(""), PermissionDenied(""))}
    assert set(label.values) == {code.name.lower() for code in CODES.values()} - of_callers | {"unknown"}


def test_bounds_go_in_steps_of_1_2_5() -> None:
    assert steps_of_125(-2, 1) == (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@pytest.mark.parametrize("metrics", every(), ids=lambda metrics: type(metrics).__name__)
def test_a_process_exposes_the_metrics_of_its_service_from_the_start_and_no_other(metrics: Metrics) -> None:
    service = Service(type(metrics).__name__.removesuffix("Metrics").lower())
    present = {sample.name for sample in scrape(metrics) if sample.name.startswith("specsplit_")}
    assert present == {name for metric in metrics_of(service) for name in metric.series}


def test_every_series_of_the_table_is_there_at_0() -> None:
    metrics = VerifierMetrics(on=True)
    misses = values(scrape(metrics), "specsplit_misses_total")
    assert misses == {(cause.value,): 0 for cause in Miss}


def test_a_drafter_has_the_series_of_its_own_kind_only() -> None:
    samples = scrape(DrafterMetrics(DrafterKind.NGRAM, on=True))
    assert {s.labels[KIND.name] for s in samples if KIND.name in s.labels} == {"ngram"}


async def test_a_scraper_that_does_not_know_openmetrics_gets_the_older_text() -> None:
    with expose(VerifierMetrics(on=True), "127.0.0.1:0") as bound:
        kind, text = await asyncio.to_thread(fetch, bound, "text/plain")
        newer, _ = await asyncio.to_thread(fetch, bound, OPENMETRICS)
    assert kind.startswith("text/plain") and newer.startswith("application/openmetrics-text")
    assert "specsplit_steps" in {family.name for family in older_text(text)}


def ask(bound: str, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(bound, timeout=10)
    with closing(connection):
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics", 200),
        ("GET", "/metrics?from=here", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/", 404),
        ("HEAD", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/favicon.ico", 404),
        ("POST", "/other", 404),
        ("POST", "/metrics", 405),
        ("OPTIONS", "/metrics", 405),
    ],
)
async def test_metrics_are_at_their_path_alone_and_can_only_be_read(method: str, path: str, status: int) -> None:
    with expose(VerifierMetrics(on=True), "127.0.0.1:0") as bound:
        found, headers, body = await asyncio.to_thread(ask, bound, method, path)
    assert (found, headers.get("Allow")) == (status, "GET, HEAD" if status == 405 else None)
    assert int(headers["Content-Length"]) > 0 and (method == "HEAD") == (body == b"")
    assert status == 200 or method == "HEAD" or body.endswith(b"\n")


async def test_metrics_that_are_off_listen_nowhere_and_count_no_steps() -> None:
    metrics = VerifierMetrics(on=False)
    metrics.step(Record(sessions=[Step()]))
    with expose(metrics, "") as bound:
        assert bound == ""
    metrics.on = True
    assert value(scrape(metrics), "specsplit_steps_total") == 0


async def test_a_port_that_is_taken_is_an_error_that_names_the_setting() -> None:
    with (
        expose(VerifierMetrics(on=True), "127.0.0.1:0") as bound,
        pytest.raises(InvalidRequest, match="metrics_listen"),
        expose(VerifierMetrics(on=True), bound),
    ):
        pass


async def test_watchers_run_on_the_event_loop() -> None:
    metrics = CoordinatorMetrics(on=True)
    where: list[asyncio.AbstractEventLoop] = []

    def read() -> Cluster:
        where.append(asyncio.get_running_loop())
        return Cluster()

    metrics.watch(read)
    with expose(metrics, "127.0.0.1:0") as bound:
        await asyncio.to_thread(fetch, bound, OPENMETRICS)
    assert where == [asyncio.get_running_loop()]


async def test_a_scrape_of_a_busy_event_loop_gets_the_counters_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsplit.observe.exposition.REFRESH_S", 0.01)
    metrics = VerifierMetrics(on=True)
    metrics.watch(Load)
    metrics.step(Record())
    with expose(metrics, "127.0.0.1:0") as bound:
        _, text = fetch(bound, OPENMETRICS)  # this blocks the loop
    assert "specsplit_steps_total 1.0" in text


# The coordinator


def test_a_burst_of_k_tokens_is_k_intervals() -> None:
    metrics = CoordinatorMetrics(on=True)
    metrics.first_token(0.5)
    metrics.intervals(0.375, 4)
    metrics.intervals(0.25, 1)
    samples = scrape(metrics)
    assert value(samples, "specsplit_time_to_first_token_seconds_count") == 1
    assert value(samples, "specsplit_time_to_first_token_seconds_sum") == 0.5
    assert value(samples, "specsplit_inter_token_latency_seconds_count") == 5
    assert value(samples, "specsplit_inter_token_latency_seconds_sum") == 0.625
    buckets = {s.labels["le"]: s.value for s in samples if s.name == "specsplit_inter_token_latency_seconds_bucket"}
    assert (buckets["0.05"], buckets["0.1"], buckets["0.2"], buckets["0.5"]) == (0, 4, 4, 5)


def test_a_traced_request_leaves_its_trace_id_as_exemplar() -> None:
    metrics = CoordinatorMetrics(on=True)
    metrics.placed(0.01, TRACE)
    metrics.first_token(0.3, TRACE)
    metrics.intervals(0.1, 2, TRACE)
    metrics.finished(FinishReason.STOP, 0.5, TRACE)
    exemplars = {s.name: s.exemplar for s in scrape(metrics) if s.exemplar is not None}
    names = [metric.name for metric in metrics_of(Service.COORDINATOR) if metric.exemplars]
    assert exemplars.keys() == {f"{name}_bucket" for name in names} and len(names) == 4
    assert all(exemplar.labels == {"trace_id": TRACE} for exemplar in exemplars.values())


def test_ends_are_counted_by_reason_or_status_and_an_unknown_status_as_unknown() -> None:
    metrics = CoordinatorMetrics(on=True)
    metrics.finished(FinishReason.LENGTH, 2.0)
    metrics.failed("CANCELLED")
    metrics.failed("DATA_LOSS")
    samples = scrape(metrics)
    assert values(samples, "specsplit_requests_finished_total") == {("stop",): 0, ("length",): 1}
    failed = values(samples, "specsplit_requests_failed_total")
    assert {code: n for code, n in failed.items() if n} == {("cancelled",): 1, ("unknown",): 1}
    assert value(samples, "specsplit_request_duration_seconds_count") == 1


def test_members_are_counted_by_role_and_state() -> None:
    verifier = ModelInfo("m", VOCABULARY, 512)
    drafter = DrafterInfo(DrafterKind.NGRAM, "", None, 512)
    cluster = Cluster(
        (
            Member("v", "h:1", verifier, 4),
            Member("d", "h:2", drafter, 4),
            Member("e", "h:3", drafter, 4, draining=True),
        ),
        queued=5,
        running=7,
    )
    metrics = CoordinatorMetrics(on=True)
    metrics.watch(lambda: cluster)
    metrics.member_lost(drafter)
    samples = scrape(metrics)
    members = {
        ("verifier", "serving"): 1,
        ("verifier", "draining"): 0,
        ("drafter", "serving"): 1,
        ("drafter", "draining"): 1,
    }
    assert values(samples, "specsplit_members") == members
    assert values(samples, "specsplit_members_lost_total") == {("verifier",): 0, ("drafter",): 1}
    assert value(samples, "specsplit_queued_requests") == 5
    assert value(samples, "specsplit_running_requests") == 7


# The verifier


def test_turns_of_a_rank_worked_through_by_hand() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.step(Record())
    metrics.step(Record(turn=TurnCosts(2, [40, 0, 20, 0], woke_s=0.003)))
    metrics.step(Record(tokens=0, drafts=DraftCounters(failovers=1), turn=TurnCosts(3, [0, 40, 0, 0])))
    samples = scrape(metrics)
    totals = {"steps": 2, "batch_tokens": 80, "idle_turns": 1, "waves": 3, "failovers": 1}
    assert {name: value(samples, f"specsplit_{name}_total") for name in totals} == totals
    assert value(samples, "specsplit_step_time_seconds_count") == 2
    assert value(samples, "specsplit_turn_imbalance_sum") == pytest.approx(40 * 4 / 60 + 4)
    assert value(samples, "specsplit_wake_seconds_count") == 1


def test_the_time_of_steps_is_counted_by_what_drafters_do_where_that_is_tried() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.step(Record())
    assert set(values(scrape(metrics), "specsplit_arm_seconds_total").values()) == {0.0}
    for arm, times in zip(Arm, (4, 3, 2, 1), strict=True):
        for _ in range(times):
            metrics.step(Record(arm=arm, waited_us=0.25e6, forward_us=1e6, host_us=0.5e6))
    found = values(scrape(metrics), "specsplit_arm_seconds_total")
    assert found == {("work",): 7.0, ("rest",): 5.25, ("work_tried",): 3.5, ("rest_tried",): 1.75}


def test_steps_are_counted_by_whether_lookup_beside_the_drafter_worked_in_them() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.step(Record(drafts=DraftCounters(lookups=3, lookup_rests=1)))
    metrics.step(Record(drafts=DraftCounters(lookup_rests=4)))
    found = values(scrape(metrics), "specsplit_lookup_beside_steps_total")
    assert found == {("work",): 3.0, ("rest",): 5.0}


def test_turns_of_a_drafters_rank_worked_through_by_hand() -> None:
    metrics = DrafterMetrics(DrafterKind.MULTI_LAYER_EAGLE, on=True)
    metrics.turn(TurnCosts(2, [40, 0, 20, 0], woke_s=0.003), idle=False)
    metrics.turn(TurnCosts(3, [0, 40, 0, 0]), idle=True)
    samples = scrape(metrics)
    assert value(samples, "specsplit_idle_turns_total") == 1 and value(samples, "specsplit_waves_total") == 3
    assert value(samples, "specsplit_turn_imbalance_sum") == pytest.approx(40 * 4 / 60 + 4)
    assert value(samples, "specsplit_wake_seconds_count") == 1


def test_a_step_worked_through_by_hand() -> None:
    metrics = VerifierMetrics(on=True)
    plan = Plan(num_steps=4, num_draft_tokens=12)
    sessions = [
        Step(drafted=11, depth=4, accepted=3, committed=4, hit=True, shown_plan=plan),
        Step(drafted=6, depth=2, accepted=0, committed=1, hit=False, miss=Miss.LATE, shown_plan=plan),
        Step(speculates=False),
        Step(drafted=11, depth=4, accepted=2, committed=2, shown_plan=plan),  # a stop token: no bonus, no commit
    ]
    step = Record(
        sessions=sessions,
        prefill_tokens=7,
        recomputed_tokens=3,
        drafts=DraftCounters(9, 2, 1, round_trips_s=[0.004, 0.03]),
        kv=KVCounters(preemptions=2, cached_tokens=64),
    )
    metrics.step(step)
    samples = scrape(metrics)
    totals = {
        "steps": 1,
        "session_steps": 4,
        "batch_tokens": 40,
        "drafted_tokens": 28,
        "accepted_tokens": 5,
        "bonus_tokens": 3,
        "generated_tokens": 8,
        "prefill_tokens": 7,
        "recomputed_tokens": 3,
        "hits": 1,
        "failovers": 1,
        "cached_tokens": 64,
        "preemptions": 2,
    }
    assert {name: value(samples, f"specsplit_{name}_total") for name in totals} == totals
    assert values(samples, "specsplit_misses_total") == {("wrong",): 0, ("late",): 1, ("none",): 0}
    assert values(samples, "specsplit_wasted_nodes_total") == {("rejected",): 23, ("unverified",): 9, ("late",): 2}
    assert list(values(samples, "specsplit_reached_depth_total").values()) == [3, 3, 2, 2, 0, 0, 0, 0]
    assert list(values(samples, "specsplit_accepted_depth_total").values()) == [2, 2, 1, 0, 0, 0, 0, 0]
    assert value(samples, "specsplit_accept_length_count") == 3
    assert value(samples, "specsplit_accept_length_sum") == 4 + 1 + 3
    assert value(samples, "specsplit_spec_num_steps") == 3
    assert value(samples, "specsplit_spec_num_draft_tokens") == 9
    assert value(samples, "specsplit_step_time_seconds_sum") == pytest.approx(0.0065)
    assert value(samples, "specsplit_round_trip_seconds_sum") == pytest.approx(0.034)


def test_the_gauges_of_the_plan_are_0_without_a_drafter_and_under_a_plan_that_does_not_speculate() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.step(Record(sessions=[Step()]))
    assert value(scrape(metrics), "specsplit_spec_num_steps") == Plan().num_steps
    metrics.step(Record())  # a prompt alone says nothing of the plan
    assert value(scrape(metrics), "specsplit_spec_num_steps") == Plan().num_steps
    metrics.step(Record(sessions=[Step(speculates=False), Step(speculates=False, shown_plan=Plan(num_steps=0))]))
    samples = scrape(metrics)
    assert value(samples, "specsplit_spec_num_steps") == value(samples, "specsplit_spec_num_draft_tokens") == 0
    assert value(samples, "specsplit_accept_length_count") == 1


def test_a_session_that_drafts_counts_for_accept_length_even_if_it_is_shown_as_one_of_0_steps() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.step(
        Record(sessions=[Step(shown_plan=Plan(num_steps=0)), Step(drafted=4, depth=2, accepted=2, committed=3)])
    )
    samples = scrape(metrics)
    assert value(samples, "specsplit_accept_length_count") == 2
    assert value(samples, "specsplit_accept_length_sum") == 1 + 3


def test_nodes_below_the_last_depth_of_the_table_are_counted_with_it() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.step(Record(sessions=[Step(drafted=12, depth=12, accepted=10, committed=11)]))
    samples = scrape(metrics)
    assert list(values(samples, "specsplit_reached_depth_total").values()) == [1, 1, 1, 1, 1, 1, 1, 5]
    assert list(values(samples, "specsplit_accepted_depth_total").values()) == [1, 1, 1, 1, 1, 1, 1, 3]


STEPS = st.builds(
    Step,
    drafted=st.integers(12, 40),
    depth=st.just(12),
    accepted=st.integers(0, 12),
    speculates=st.booleans(),
    hit=st.sampled_from([True, None]),
)


@given(batches=st.lists(st.lists(STEPS, max_size=4), max_size=6))
def test_counts_agree_with_one_another_whatever_the_steps(batches: list[list[Step]]) -> None:
    metrics = VerifierMetrics(on=True)
    for sessions in batches:
        metrics.step(Record(sessions=sessions))
    found: dict[str, float] = {}
    for sample in scrape(metrics):
        found[sample.name] = found.get(sample.name, 0) + sample.value
    assert found["specsplit_accepted_depth_total"] == found["specsplit_accepted_tokens_total"]
    assert found["specsplit_reached_depth_total"] == 12 * found["specsplit_session_steps_total"]
    wasted = found["specsplit_drafted_tokens_total"] - found["specsplit_accepted_tokens_total"]
    assert found["specsplit_wasted_nodes_total"] == wasted
    attached = [step for sessions in batches for step in sessions if step.speculates]
    assert found["specsplit_accept_length_count"] == len(attached)
    assert found["specsplit_accept_length_sum"] == sum(step.accepted + 1 for step in attached)


def test_load_and_streams_are_looked_up_and_rare_events_are_told() -> None:
    metrics = VerifierMetrics(on=True)
    metrics.watch(lambda: Load(sessions=7, waiting=2, free_pages=24, total_pages=64))
    metrics.watch_streams(
        lambda: [StreamStatistics(1, 2, 3, 4, 5, 6, 1), StreamStatistics(10, 20, 30, 40, 50, 60, 10, drops=3)]
    )
    metrics.session(100)
    metrics.watch_plan(lambda: PlanRecord(Plan(), 1), lambda: Control(Adaptive.EMA))
    metrics.drafter_lost()
    samples = scrape(metrics)
    assert (value(samples, "specsplit_running_sessions"), value(samples, "specsplit_waiting_sessions")) == (5, 2)
    assert (value(samples, "specsplit_kv_pages"), value(samples, "specsplit_kv_pages_used")) == (64, 40)
    assert values(samples, "specsplit_draft_messages_total") == {("sent",): 11, ("received",): 22}
    assert values(samples, "specsplit_draft_bytes_total") == {("sent",): 33, ("received",): 44}
    assert value(samples, "specsplit_drafters_dropped_total") == 3
    assert value(samples, "specsplit_nodes_received_total") == 55
    assert value(samples, "specsplit_feature_bytes_total") == 11
    assert value(samples, "specsplit_prompt_tokens_total") == 100
    assert value(samples, "specsplit_plan_switches_total") == value(samples, "specsplit_drafters_lost_total") == 1


def test_the_controller_in_force_and_its_estimate_are_looked_up() -> None:
    metrics, estimate = VerifierMetrics(on=True), Estimate(2.5, 0.02, 1e-4, 120.0, 100.0)
    told = [PlanRecord(Plan(), 3), PlanRecord(Plan(), 4, estimate)]
    controls = [Control(Adaptive.STATIC), GOODPUT]
    metrics.watch_plan(lambda: told[0], lambda: controls[0])
    samples = scrape(metrics)
    assert values(samples, "specsplit_adaptive_controller") == {("static",): 1, ("ema",): 0, ("goodput",): 0}
    assert value(samples, "specsplit_adaptive_expected_rate") == value(samples, "specsplit_adaptive_static_rate") == 0
    del told[0], controls[0]
    samples = scrape(metrics)
    assert values(samples, "specsplit_adaptive_controller") == {("static",): 0, ("ema",): 0, ("goodput",): 1}
    assert value(samples, "specsplit_adaptive_expected_rate") == 120
    assert value(samples, "specsplit_adaptive_static_rate") == 100
    assert value(samples, "specsplit_adaptive_accept_length") == 2.5
    assert value(samples, "specsplit_adaptive_step_seconds") == 0.02
    assert value(samples, "specsplit_adaptive_token_seconds") == 1e-4


# The drafter


def test_what_a_drafter_has_done_is_looked_up_and_its_expansions_are_told() -> None:
    metrics = DrafterMetrics(DrafterKind.STANDALONE, on=True)
    metrics.watch(Totals)
    metrics.expansion(0.002)
    metrics.expansion(0.003)
    metrics.refused("RESOURCE_EXHAUSTED")
    samples = scrape(metrics)
    totals = {
        "expansions": 100,
        "expanded_nodes": 800,
        "pushed_nodes": 1600,
        "commits_applied": 90,
        "committed_nodes": 180,
    }
    assert {name: value(samples, f"specsplit_{name}_total", "standalone") for name in totals} == totals
    assert value(samples, "specsplit_open_sessions", "standalone") == 3
    assert value(samples, "specsplit_open_streams", "standalone") == 2
    assert value(samples, "specsplit_kv_pages_used") == 30
    assert value(samples, "specsplit_refusals_total", "resource_exhausted") == 1
    assert value(samples, "specsplit_draft_time_seconds_sum", "standalone") == pytest.approx(0.005)


def test_what_states_of_recurrent_layers_take_is_told_as_it_is_at_a_scrape() -> None:
    metrics, found = VerifierMetrics(on=True), [StateBytes()]
    metrics.watch_states(lambda: found[-1])
    assert values(scrape(metrics), "specsplit_state_bytes") == {("sessions",): 0, ("drafts",): 0, ("prefixes",): 0}
    found.append(StateBytes(sessions=5, drafts=7, prefixes=9))
    assert values(scrape(metrics), "specsplit_state_bytes") == {("sessions",): 5, ("drafts",): 7, ("prefixes",): 9}


# Both members


@pytest.mark.parametrize("metrics", every()[1:], ids=lambda metrics: type(metrics).__name__)
def test_forwards_are_counted_by_whether_they_were_a_graph(metrics: Metrics) -> None:
    target = GraphStatistics(72, 1 << 20, 100, {Eager.SIZE: 3}).merged_with(GraphStatistics(3, 5, 1, {Eager.LAYOUT: 2}))
    metrics.watch_graphs(lambda: target)
    samples = scrape(metrics)
    assert value(samples, "specsplit_graphs") == 75 and value(samples, "specsplit_graph_bytes") == (1 << 20) + 5
    assert value(samples, "specsplit_graph_forwards_total") == 101
    eager = {(reason.value,): 0 for reason in Eager} | {("size",): 3, ("layout",): 2}
    assert values(samples, "specsplit_eager_forwards_total") == eager


# Histograms


@given(
    observations=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)), max_size=30),
    bounds=st.lists(st.floats(0.001, 10), min_size=1, max_size=8, unique=True).map(sorted),
)
def test_a_bucket_holds_what_is_at_or_below_its_bound(
    observations: list[tuple[float, int]], bounds: list[float]
) -> None:
    histogram = Histogram(bounds)
    for seen, times in observations:
        histogram.observe(seen, times)
    for bound, (name, count, *_) in zip([*bounds, float("inf")], histogram.buckets(), strict=True):
        assert float(name) == bound
        assert count == sum(times for seen, times in observations if seen <= bound)


def test_asking_for_the_wrong_kind_of_instrument_is_an_error() -> None:
    steps: Metric = next(metric for metric in TABLE if metric.name == "specsplit_steps")
    with pytest.raises(TypeError, match="a counter, not a gauge"):
        VerifierMetrics(on=True).instruments.gauge(steps)


def test_the_deepest_plan_has_its_place() -> None:
    metrics = VerifierMetrics(on=True)
    Plan(num_steps=MOST_STEPS)
    with pytest.raises(InvalidRequest):
        Plan(num_steps=MOST_STEPS + 1)
    metrics.step(
        Record(sessions=[Step(drafted=MOST_STEPS, depth=MOST_STEPS, accepted=MOST_STEPS, committed=MOST_STEPS + 1)])
    )
    assert sum(values(scrape(metrics), "specsplit_accepted_depth_total").values()) == MOST_STEPS


def test_clients_that_are_named_have_series_of_their_own_and_all_others_share_one() -> None:
    metrics = CoordinatorMetrics(on=True, clients=("alice", "bob"))
    for client in ("alice", "mallory", "", "other", "alice"):
        metrics.used(client, 1, 10)
    samples = scrape(metrics)
    assert values(samples, "specsplit_client_requests_total") == {("alice",): 2, ("bob",): 0, ("other",): 3}
    assert values(samples, "specsplit_client_tokens_total") == {("alice",): 20, ("bob",): 0, ("other",): 30}
