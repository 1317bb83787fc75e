"""Overview: is it fast, how much does it do, does it fail, is it full."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard

from scripts.dashboards.page import Row, page
from scripts.dashboards.panels import Query, distribution, limits, lines, number, percentiles
from scripts.dashboards.promql import Source
from specsplit.observe import metric_table as table

ALL = Source()
BLAMELESS = "cancelled|invalid_argument|not_found|unimplemented"
"""Statuses that are the caller's doing; the same as in deploy/prometheus/rules."""
ERRORS = ALL.rate(table.REQUESTS_FAILED, where=f'code!~"{BLAMELESS}"')
REQUESTS = f"({ALL.rate(table.REQUESTS_FINISHED)} + {ERRORS})"


def overview() -> dashboard.Dashboard:
    """The first page to look at."""
    return page(
        "specsplit-overview",
        "specsplit / Overview",
        "Latency, throughput, errors and saturation of a cluster.",
        [_glance(), _latency(), _throughput(), _errors(), _saturation()],
        choices=False,
    )


def _glance() -> Row:
    return "At a glance", [
        number("Requests", "Requests that ended, per second.", "reqps", REQUESTS),
        number(
            "Errors",
            "Share of requests that ended with an error that is not the caller's doing. The budget is 1 %.",
            "percentunit",
            f"{ERRORS} / {REQUESTS}",
            thresholds=limits(0.01, 0.05),
        ),
        number(
            "Time to first token, p99",
            "99 of 100 requests had their first token by then.",
            "s",
            ALL.quantile(0.99, table.TIME_TO_FIRST_TOKEN),
            thresholds=limits(1, 5),
        ),
        number(
            "Between tokens, p99",
            "99 of 100 intervals between tokens were no longer.",
            "s",
            ALL.quantile(0.99, table.INTER_TOKEN_LATENCY),
            thresholds=limits(0.1, 0.5),
        ),
        number("Tokens", "Tokens generated per second.", "suffix: tok/s", ALL.rate(table.GENERATED_TOKENS)),
        number(
            "Accept length",
            "Tokens per session step with a drafter: accepted nodes and the bonus. At 1 speculation brings nothing.",
            "none",
            ALL.mean(table.ACCEPT_LENGTH),
            thresholds=limits(1.5, 1.05),
        ),
        number(
            "Members",
            "Verifiers and drafters that take sessions.",
            "none",
            ALL.level(table.MEMBERS, where='state="serving"'),
            thresholds=limits(2, 1),
        ),
        number(
            "Alerts",
            "Alerts that fire now.",
            "none",
            'count(ALERTS{alertname=~"Specsplit.*", alertstate="firing"}) or vector(0)',
            thresholds=limits(1, 2),
        ),
    ]


def _latency() -> Row:
    return "Latency", [
        lines(
            "Time to first token",
            "From the arrival of a request to its first tokens. A point on the graph is the exemplar of a trace.",
            "s",
            percentiles(ALL, table.TIME_TO_FIRST_TOKEN),
            thresholds=limits(1, 5),
            spans="generate",
        ),
        lines(
            "Between tokens",
            "Time between tokens; a burst of k tokens is k intervals.",
            "s",
            percentiles(ALL, table.INTER_TOKEN_LATENCY),
            thresholds=limits(0.1, 0.5),
            spans="decode",
        ),
        distribution(
            "Between tokens, all of them",
            "How many intervals between tokens were how long.",
            "s",
            ALL.buckets(table.INTER_TOKEN_LATENCY),
            exemplars=True,
            spans="decode",
        ),
        lines(
            "Whole requests",
            "From the arrival of a request to its last message; requests that failed are not in it.",
            "s",
            percentiles(ALL, table.REQUEST_DURATION),
            spans="generate",
            width=12,
        ),
        lines(
            "In the queue",
            "From the arrival of a request to its place on a verifier, tokenizing included.",
            "s",
            percentiles(ALL, table.QUEUE_TIME),
            thresholds=limits(1, 5),
            spans="queue",
            width=12,
        ),
    ]


def _throughput() -> Row:
    return "Throughput", [
        lines(
            "Requests that ended with a text",
            "By finish reason: stop is an end token or a stop string, length is max_tokens or a full context.",
            "reqps",
            [Query(ALL.rate(table.REQUESTS_FINISHED, "reason"), "{{reason}}")],
            stacked=True,
        ),
        lines(
            "Tokens out", "Tokens generated.", "suffix: tok/s", [Query(ALL.rate(table.GENERATED_TOKENS), "generated")]
        ),
        lines(
            "Tokens in",
            "Tokens of prompts: those that came, those whose KV was there already, and those that were read.",
            "suffix: tok/s",
            [
                Query(ALL.rate(table.PROMPT_TOKENS), "prompts"),
                Query(ALL.rate(table.CACHED_TOKENS), "cached"),
                Query(ALL.rate(table.PREFILL_TOKENS), "read"),
            ],
        ),
    ]


def _errors() -> Row:
    return "Errors", [
        lines(
            "Requests that failed",
            "By gRPC status.",
            "reqps",
            [Query(ALL.rate(table.REQUESTS_FAILED, "code"), "{{code}}")],
            stacked=True,
        ),
        lines(
            "Errors, share",
            "Share of requests that ended with an error that is not the caller's doing. The budget is 1 %.",
            "percentunit",
            [Query(f"{ERRORS} / {REQUESTS}", "errors")],
            thresholds=limits(0.01, 0.05),
        ),
        lines(
            "Losses",
            "Members that went without draining, streams to drafters that broke, sessions that got another drafter, and sessions that "
            "gave their KV pages back, to be computed again.",
            "cps",
            [
                Query(ALL.rate(table.MEMBERS_LOST, "role"), "{{role}} lost"),
                Query(ALL.rate(table.DRAFTERS_LOST), "stream lost"),
                Query(ALL.rate(table.FAILOVERS), "failover"),
                Query(ALL.rate(table.PREEMPTIONS), "preemption"),
                Query(ALL.rate(table.SESSION_FAILOVERS, "cause"), "session moved: {{cause}}"),
                Query(ALL.rate(table.RESUMED_TOKENS), "tokens read again"),
            ],
        ),
    ]


def _saturation() -> Row:
    return "Saturation", [
        lines(
            "Requests now",
            "Requests that have a place on a verifier, and requests that wait for one.",
            "none",
            [
                Query(ALL.level(table.RUNNING_REQUESTS), "running"),
                Query(ALL.level(table.QUEUED_REQUESTS), "queued"),
            ],
            width=12,
        ),
        lines(
            "KV pages used",
            "Share of its KV pages that each member's sessions hold. Full means that sessions wait, or are not drafted for.",
            "percentunit",
            [
                Query(
                    f"{ALL.level(table.KV_PAGES_USED, 'job, instance')} / {ALL.level(table.KV_PAGES, 'job, instance')}",
                    "{{job}} {{instance}}",
                )
            ],
            thresholds=limits(0.8, 0.95),
            top=1,
            width=12,
        ),
    ]
