"""Members: what each verifier and each drafter carries."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard

from scripts.dashboards.page import CHOSEN, Row, page
from scripts.dashboards.panels import Query, limits, lines
from scripts.dashboards.promql import Source
from specsplit.observe import metric_table as table
from specsplit.observe.metric import Metric

CHOICE = Source(CHOSEN)
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
        lines(
            "Members",
            "Members as the coordinator sees them. A draining one takes no new sessions.",
            "none",
            [Query(CHOICE.level(table.MEMBERS, "role, state"), "{{role}} {{state}}")],
            width=12,
        ),
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
            [
                Query(CHOICE.rate(table.SESSION_FAILOVERS, "cause"), "{{cause}}"),
                Query(CHOICE.rate(table.PREEMPTIONS, "instance"), "{{instance}} preemption"),
            ],
            width=12,
        ),
    ]


def _verifiers() -> Row:
    by = "instance"
    return "Verifiers", [
        lines(
            "Sessions",
            "Sessions that hold KV pages, and sessions that wait for some.",
            "none",
            [
                Query(CHOICE.level(table.RUNNING_SESSIONS, by), "{{instance}} running"),
                Query(CHOICE.level(table.WAITING_SESSIONS, by), "{{instance}} waiting"),
            ],
        ),
        lines(
            "Steps",
            "Forward passes of the target per second.",
            "suffix: steps/s",
            [Query(CHOICE.rate(table.STEPS, by), "{{instance}}")],
            spans="step",
        ),
        lines(
            "Tokens",
            "Tokens generated per second.",
            "suffix: tok/s",
            [Query(CHOICE.rate(table.GENERATED_TOKENS, by), "{{instance}}")],
        ),
        lines(
            "Verify time",
            "Mean time of one forward pass of the target.",
            "s",
            [Query(CHOICE.mean(table.VERIFY_TIME, by), "{{instance}}")],
            spans="step",
        ),
        lines(
            "Busy",
            "Share of the time in which a step is under way, waits for drafters included.",
            "percentunit",
            [
                Query(
                    f"sum by (instance) (rate({CHOICE.series(table.STEP_TIME, '_sum')}[$__rate_interval]))",
                    "{{instance}}",
                )
            ],
            top=1,
        ),
        lines(
            "Streams lost, sessions moved",
            "Streams to drafters that broke, fell silent or could not be opened, of these the ones that were closed here because the "
            "drafter caused more work than it was asked for, sessions that got another drafter for that, and those that the coordinator "
            "had handed over to a better one.",
            "cps",
            [
                Query(CHOICE.rate(table.DRAFTERS_LOST, by), "{{instance}} stream lost"),
                Query(CHOICE.rate(table.DRAFTERS_DROPPED, by), "{{instance}} of these dropped"),
                Query(CHOICE.rate(table.FAILOVERS, by), "{{instance}} failover"),
                Query(CHOICE.rate(table.HAND_OVERS, by), "{{instance}} handed over"),
            ],
        ),
    ]


def _mean_or_0(metric: Metric) -> str:
    """The mean by instance of what may not have been observed at all: most verifiers are alone."""
    total, count = (
        f"sum by (instance) (rate({CHOICE.series(metric, suffix)}[$__rate_interval]))" for suffix in ("_sum", "_count")
    )
    return f"{total} / clamp_min({count}, 1e-9)"


def _groups() -> Row:
    by = "instance"
    return "Rank groups", [
        lines(
            "Idle turns, waves",
            "Forward passes per second that a rank took part in without tokens of its own, since another rank of its group had some; how "
            "often the group woke up. Between two waves it costs nothing.",
            "cps",
            [
                Query(CHOICE.rate(table.IDLE_TURNS, by), "{{instance}} idle turn"),
                Query(CHOICE.rate(table.WAVES, by), "{{instance}} wave"),
            ],
        ),
        lines(
            "Imbalance",
            "Tokens of the rank that has most, by the mean of all ranks of its group: 1 is even, the number of ranks is one rank alone; "
            "0 while nobody steps.",
            "none",
            [Query(_mean_or_0(table.TURN_IMBALANCE), "{{instance}}")],
        ),
        lines(
            "Wake time",
            "From when a rank had work while its group was parked to the forward of its first step, the mean; 0 if none woke up.",
            "s",
            [Query(_mean_or_0(table.WAKE_TIME), "{{instance}}")],
        ),
    ]


def _drafters() -> Row:
    by = "kind, instance"
    return "Drafters", [
        lines(
            "Sessions",
            "Sessions that each drafter grows for.",
            "none",
            [Query(CHOICE.level(table.OPEN_SESSIONS, by), "{{kind}} {{instance}}")],
            spans="spec_draft",
        ),
        lines(
            "Streams",
            "Verifiers that each drafter grows for.",
            "none",
            [Query(CHOICE.level(table.OPEN_STREAMS, by), "{{kind}} {{instance}}")],
        ),
        lines(
            "Expansions",
            "Forward passes per second.",
            "suffix: exp/s",
            [Query(CHOICE.rate(table.EXPANSIONS, by), "{{kind}} {{instance}}")],
            spans="expansion",
        ),
        lines(
            "Draft time",
            "Mean time of one expansion.",
            "s",
            [Query(CHOICE.mean(table.DRAFT_TIME, by), "{{kind}} {{instance}}")],
            spans="expansion",
        ),
        lines(
            "Refusals",
            "Sessions that a drafter ended on its side, by gRPC status: resource_exhausted means that it is full.",
            "cps",
            [Query(CHOICE.rate(table.REFUSALS, "code, instance"), "{{instance}} {{code}}")],
            stacked=True,
        ),
        lines(
            "KV pages used",
            "Share of its KV pages that each member's sessions hold, verifiers included.",
            "percentunit",
            [
                Query(
                    f"{CHOICE.level(table.KV_PAGES_USED, 'job, instance')} / {CHOICE.level(table.KV_PAGES, 'job, instance')}",
                    "{{job}} {{instance}}",
                )
            ],
            thresholds=limits(0.8, 0.95),
            top=1,
        ),
        lines(
            "Forwards with and without a graph",
            "Forward passes a second: those that were a CUDA graph, and those that ran eagerly although others are one, by reason; size "
            "means that cuda_graph_tokens or cuda_graph_rows is too small for them, layers that cuda_graph_layers lacks what a head reads.",
            "ops",
            [
                Query(CHOICE.rate(table.GRAPH_FORWARDS, "job, instance"), "{{job}} {{instance}} graph"),
                Query(CHOICE.rate(table.EAGER_FORWARDS, "job, instance, reason"), "{{job}} {{instance}} {{reason}}"),
            ],
            stacked=True,
        ),
        lines(
            "Graphs",
            "Forward passes that a member has captured as CUDA graphs at start. 0: every one runs eagerly, and its log says why.",
            "none",
            [Query(CHOICE.level(table.GRAPHS, "job, instance"), "{{job}} {{instance}}")],
        ),
        lines(
            "Memory of graphs",
            "Memory of the device that a member's CUDA graphs take.",
            "bytes",
            [Query(CHOICE.level(table.GRAPH_BYTES, "job, instance"), "{{job}} {{instance}}")],
        ),
    ]
