"""Members: what each verifier and each drafter carries."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard

from scripts.dashboards.page import CHOSEN, Row, page
from scripts.dashboards.panels import Query, limits, lines
from scripts.dashboards.promql import Source
from specsplit.observe import metric_table as table

CHOICE = Source(CHOSEN)
JOBS = 'job=~"specsplit.*"'
"""The jobs of deploy/prometheus/prometheus.yml."""


def members() -> dashboard.Dashboard:
    """What one looks at to place sessions and to add or remove members."""
    return page(
        "specsplit-members",
        "specsplit / Members",
        "Sessions, steps and KV of each verifier and each drafter.",
        [_cluster(), _verifiers(), _drafters()],
        choices=True,
    )


def _cluster() -> Row:
    return "Cluster", [
        lines(
            "Members",
            "Members as the coordinator sees them. A draining one takes no new sessions.",
            "none",
            [Query(CHOICE.level(table.MEMBERS, "role, state"), "{{role}} {{state}}")],
        ),
        lines(
            "CPU",
            "Cores that each process keeps busy.",
            "none",
            [Query(f"rate(process_cpu_seconds_total{{{JOBS}}}[$__rate_interval])", "{{job}} {{instance}}")],
        ),
        lines(
            "Memory",
            "Resident memory of each process; that of a GPU is not in it.",
            "bytes",
            [Query(f"process_resident_memory_bytes{{{JOBS}}}", "{{job}} {{instance}}")],
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
            "Streams to drafters that broke, fell silent or could not be opened, sessions that got another drafter for that, and those "
            "that the coordinator had handed over to a better one.",
            "cps",
            [
                Query(CHOICE.rate(table.DRAFTERS_LOST, by), "{{instance}} stream lost"),
                Query(CHOICE.rate(table.FAILOVERS, by), "{{instance}} failover"),
                Query(CHOICE.rate(table.HAND_OVERS, by), "{{instance}} handed over"),
            ],
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
    ]
