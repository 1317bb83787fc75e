"""Gateway: what programs of the OpenAI API see of the cluster, by the metrics of smg itself (docs/api.md)."""

from __future__ import annotations

from functools import partial

from scripts.dashboards import panels
from scripts.dashboards.page import Row
from scripts.dashboards.panels import Query, lines
from scripts.dashboards.promql import Source
from specsplit.observe.metric import Kind, Metric

ALL = Source()
chart, times = partial(panels.chart, ALL), partial(panels.times, ALL)
RESPONSES = Metric("smg_http_responses", Kind.COUNTER, (), "Responses over HTTP, once they have gone out in full.")
DURATION = Metric(
    "smg_router_request_duration_seconds",
    Kind.HISTOGRAM,
    (),
    "Time until an answer begins, in the queue and of the prompt: until its first token if it is streamed, else until all of it is there.",
)
TOKEN_TIME = Metric(
    "smg_router_tpot_seconds",
    Kind.HISTOGRAM,
    (),
    "Time from one token to the next, the mean of each answer that is streamed.",
)
ACTIVE = Metric(
    "smg_worker_requests_active", Kind.GAUGE, (), "Requests that a worker, which is a coordinator as a rule, has now."
)
HEALTH = Metric(
    "smg_worker_health",
    Kind.GAUGE,
    (),
    "Gateways that take a worker for healthy. 0: none of them sends it a request until it has answered their checks again.",
)
METRICS = (RESPONSES, DURATION, TOKEN_TIME, ACTIVE, HEALTH)
"""Those of smg that are shown. `smg_router_ttft_seconds` is not: smg starts its clock when the answer has begun (docs/api.md)."""
REQUESTS = 'path!~"/(health|health_generate|liveness|readiness)"'
"""Probes are no requests."""


def gateway() -> Row:
    """Empty in a cluster without a gateway."""
    refused = ALL.rate(RESPONSES, "error_code", where=f'error_code!="", {REQUESTS}')
    return "Gateway", [
        lines(
            "Answers over HTTP, by status",
            "Responses per second, without those to probes. 499: the caller closed the connection first.",
            "reqps",
            [Query(ALL.rate(RESPONSES, "status_code", where=REQUESTS), "{{status_code}}")],
            stacked=True,
        ),
        lines(
            "Errors over HTTP, by code",
            "Responses with an error code of smg's per second. stream_error: the answer broke off after it had begun, with status 200.",
            "reqps",
            [Query(refused, "{{error_code}}")],
            stacked=True,
        ),
        times("Until an answer begins", DURATION),
        times("Time per output token", TOKEN_TIME),
        chart("Requests at each worker", ACTIVE, "worker"),
        chart("Healthy workers", HEALTH, "worker"),
    ]
