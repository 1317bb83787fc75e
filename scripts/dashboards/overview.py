"""Overview: is it fast, how much does it do, does it fail, is it full."""

from __future__ import annotations

from functools import partial

from grafana_foundation_sdk.models import dashboard

from scripts.dashboards import panels
from scripts.dashboards.gateway import gateway
from scripts.dashboards.page import Row, page
from scripts.dashboards.panels import Query, distribution, limits, lines, number, pages_used
from scripts.dashboards.promql import Source
from specsplit.observe import metric_table as table

ALL = Source()
of, chart, times = partial(panels.of, ALL), partial(panels.chart, ALL), partial(panels.times, ALL)
BUDGET = "Share of requests that ended with an error that is not the caller's doing. The budget is 1 %."
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
        [_glance(), _latency(), _throughput(), _errors(), _saturation(), gateway()],
        choices=False,
    )


def _glance() -> Row:
    return "At a glance", [
        number("Requests", "Requests that ended, per second.", "reqps", REQUESTS),
        number("Errors", BUDGET, "percentunit", f"{ERRORS} / {REQUESTS}", thresholds=limits(0.01, 0.05)),
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
        times(
            "Time to first token",
            table.TIME_TO_FIRST_TOKEN,
            says=f"{table.TIME_TO_FIRST_TOKEN.help} A point on the graph is the exemplar of a trace.",
            thresholds=limits(1, 5),
            spans="generate",
        ),
        times(
            "Between tokens",
            table.INTER_TOKEN_LATENCY,
            says="Time between tokens; a burst of k tokens is k intervals.",
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
        times("Whole requests", table.REQUEST_DURATION, spans="generate", width=12),
        times("In the queue", table.QUEUE_TIME, thresholds=limits(1, 5), spans="queue", width=12),
    ]


def _throughput() -> Row:
    return "Throughput", [
        chart(
            "Requests that ended with a text",
            table.REQUESTS_FINISHED,
            "reason",
            unit="reqps",
            says="By finish reason: stop is an end token or a stop string, length is max_tokens or a full context.",
            stacked=True,
        ),
        chart("Tokens out", table.GENERATED_TOKENS, says="Tokens generated.", unit="suffix: tok/s", called="generated"),
        lines(
            "Tokens in",
            "Tokens of prompts: those that came, those whose KV was there already, and those that were read.",
            "suffix: tok/s",
            [
                of(table.PROMPT_TOKENS, "", "prompts"),
                of(table.CACHED_TOKENS, "", "cached"),
                of(table.PREFILL_TOKENS, "", "read"),
            ],
        ),
    ]


def _errors() -> Row:
    return "Errors", [
        chart(
            "Requests that failed", table.REQUESTS_FAILED, "code", says="By gRPC status.", unit="reqps", stacked=True
        ),
        lines(
            "Errors, share",
            BUDGET,
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
                of(table.MEMBERS_LOST, "role", "lost"),
                of(table.DRAFTERS_LOST, "", "stream lost"),
                of(table.FAILOVERS, "", "failover"),
                of(table.PREEMPTIONS, "", "preemption"),
                of(table.SESSION_FAILOVERS, "cause", "session moved: {{cause}}"),
                of(table.RESUMED_TOKENS, "", "tokens read again"),
            ],
        ),
    ]


def _saturation() -> Row:
    return "Saturation", [
        lines(
            "Requests now",
            "Requests that have a place on a verifier, and requests that wait for one.",
            "none",
            [of(table.RUNNING_REQUESTS, "", "running"), of(table.QUEUED_REQUESTS, "", "queued")],
            width=12,
        ),
        pages_used(
            ALL,
            "Share of its KV pages that each member's sessions hold. Full means that sessions wait, or are not drafted for.",
            width=12,
        ),
    ]
