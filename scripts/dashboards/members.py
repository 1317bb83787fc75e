"""Members: what each verifier and each drafter carries."""

from __future__ import annotations

from functools import partial

from grafana_foundation_sdk.models import dashboard

from scripts.dashboards import panels
from scripts.dashboards.page import CHOSEN, Row, page
from scripts.dashboards.panels import Query, lines, pages_used
from scripts.dashboards.promql import Source
from specsplit.observe import metric_table as table
from specsplit.observe.metric import Metric

CHOICE = Source(CHOSEN)
of, chart = partial(panels.of, CHOICE), partial(panels.chart, CHOICE)
SEEN = "Members as the coordinator sees them. A draining one takes no new sessions."
JOBS = 'job=~"specsplit.*"'
"""The jobs of deploy/prometheus/prometheus.yml."""


def members() -> dashboard.Dashboard:
    """What one looks at to place sessions and to add or remove members."""
    return page(
        "specsplit-members",
        "specsplit / Members",
        "Sessions, steps and KV of each verifier and each drafter.",
        [_cluster(), _verifiers(), _groups(), _drafters()],
        choices=True,
    )


def _cluster() -> Row:
    return "Cluster", [
        chart("Members", table.MEMBERS, "role, state", says=SEEN, width=12),
        lines(
            "CPU",
            "Cores that each process keeps busy.",
            "none",
            [Query(f"rate(process_cpu_seconds_total{{{JOBS}}}[$__rate_interval])", "{{job}} {{instance}}")],
            width=12,
        ),
        lines(
            "Memory",
            "Resident memory of each process; that of a GPU is not in it.",
            "bytes",
            [Query(f"process_resident_memory_bytes{{{JOBS}}}", "{{job}} {{instance}}")],
            width=12,
        ),
        lines(
            "Failovers, preemptions",
            "Sessions that went on with another verifier, or with the same one come back, by cause; times that a verifier took the KV "
            "pages of a session back.",
            "cps",
            [of(table.SESSION_FAILOVERS, "cause"), of(table.PREEMPTIONS, "instance", "preemption")],
            width=12,
        ),
    ]


def _verifiers() -> Row:
    by = "instance"
    busy = f"sum by (instance) (rate({CHOICE.series(table.STEP_TIME, '_sum')}[$__rate_interval]))"
    return "Verifiers", [
        lines(
            "Sessions",
            "Sessions that hold KV pages, and sessions that wait for some.",
            "none",
            [of(table.RUNNING_SESSIONS, by, "running"), of(table.WAITING_SESSIONS, by, "waiting")],
        ),
        chart(
            "Steps",
            table.STEPS,
            by,
            says="Forward passes of the target per second.",
            unit="suffix: steps/s",
            spans="step",
        ),
        chart("Tokens", table.GENERATED_TOKENS, by, says="Tokens generated per second.", unit="suffix: tok/s"),
        chart("Verify time", table.VERIFY_TIME, by, says="Mean time of one forward pass of the target.", spans="step"),
        lines(
            "Busy",
            "Share of the time in which a step is under way, waits for drafters included.",
            "percentunit",
            [Query(busy, "{{instance}}")],
            top=1,
        ),
        lines(
            "Streams lost, sessions moved",
            "Streams to drafters that broke, fell silent or could not be opened, of these the ones that were closed here because the "
            "drafter caused more work than it was asked for, sessions that got another drafter for that, and those that the coordinator "
            "had handed over to a better one.",
            "cps",
            [
                of(table.DRAFTERS_LOST, by, "stream lost"),
                of(table.DRAFTERS_DROPPED, by, "of these dropped"),
                of(table.FAILOVERS, by, "failover"),
                of(table.HAND_OVERS, by, "handed over"),
            ],
        ),
    ]


def _mean_or_0(metric: Metric) -> list[Query]:
    """The mean by instance of what may not have been observed at all: most verifiers are alone."""
    total, count = (
        f"sum by (instance) (rate({CHOICE.series(metric, suffix)}[$__rate_interval]))" for suffix in ("_sum", "_count")
    )
    return [Query(f"{total} / clamp_min({count}, 1e-9)", "{{instance}}")]


def _groups() -> Row:
    by = "instance"
    return "Rank groups", [
        lines(
            "Idle turns, waves",
            "Forward passes per second that a rank took part in without tokens of its own, since another rank of its group had some; how "
            "often the group woke up. Between two waves it costs nothing.",
            "cps",
            [of(table.IDLE_TURNS, by, "idle turn"), of(table.WAVES, by, "wave")],
        ),
        lines(
            "Imbalance",
            "Tokens of the rank that has most, by the mean of all ranks of its group: 1 is even, the number of ranks is one rank alone; "
            "0 while nobody steps.",
            "none",
            _mean_or_0(table.TURN_IMBALANCE),
        ),
        lines(
            "Wake time",
            "From when a rank had work while its group was parked to the forward of its first step, the mean; 0 if none woke up.",
            "s",
            _mean_or_0(table.WAKE_TIME),
        ),
    ]


def _drafters() -> Row:
    by, member = "kind, instance", "job, instance"
    return "Drafters", [
        chart("Sessions", table.OPEN_SESSIONS, by, says="Sessions that each drafter grows for.", spans="spec_draft"),
        chart("Streams", table.OPEN_STREAMS, by, says="Verifiers that each drafter grows for."),
        chart(
            "Expansions",
            table.EXPANSIONS,
            by,
            says="Forward passes per second.",
            unit="suffix: exp/s",
            spans="expansion",
        ),
        chart("Draft time", table.DRAFT_TIME, by, says="Mean time of one expansion.", spans="expansion"),
        chart(
            "Refusals",
            table.REFUSALS,
            "code, instance",
            says="Sessions that a drafter ended on its side, by gRPC status: resource_exhausted means that it is full.",
            called="{{instance}} {{code}}",
            stacked=True,
        ),
        pages_used(CHOICE, "Share of its KV pages that each member's sessions hold, verifiers included."),
        lines(
            "Forwards with and without a graph",
            "Forward passes a second: those that were a CUDA graph, and those that ran eagerly although others are one, by reason; size "
            "means that cuda_graph_tokens or cuda_graph_rows is too small for them, layers that cuda_graph_layers lacks what a head reads.",
            "ops",
            [of(table.GRAPH_FORWARDS, member, "graph"), of(table.EAGER_FORWARDS, f"{member}, reason")],
            stacked=True,
        ),
        chart(
            "Graphs",
            table.GRAPHS,
            member,
            says="Forward passes that a member has captured as CUDA graphs at start. 0: every one runs eagerly, and its log says why.",
        ),
        chart(
            "Memory of graphs", table.GRAPH_BYTES, member, says="Memory of the device that a member's CUDA graphs take."
        ),
    ]
