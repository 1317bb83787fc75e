"""Writes docs/metrics.md from the metric table and the alert rules, or with --check says whether it is what they give."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.dashboards.expressions import rules
from scripts.printed import ROOT, finish
from specsplit.observe.metric import Kind, Metric, Service
from specsplit.observe.metric_table import TABLE, metrics_of
from specsplit.observe.vllm_table import DIFFERENT, ENGINE, MODEL_NAME, POSITION, VLLM_TABLE

PAGE = ROOT / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

<!-- Printed by `python -m scripts.print_metrics`; edit the tables in specsplit/observe and deploy/prometheus/rules, not this page. -->

Every process serves its metrics at `http://HOST:PORT/metrics` once `metrics_listen` says where; empty, as it is by default, means off.
The format is OpenMetrics, or Prometheus' older text for a client that does not ask for it. Histograms marked *exemplars* carry the
trace ids of requests that were traced.

* Counters come first: an accept length is a ratio of two rates, and right while plans change. For instance
  `rate(specsplit_accept_length_sum[1m]) / rate(specsplit_accept_length_count[1m])`.
* Units are base units: seconds and bytes. A counter's series ends in `_total`.
* Labels have few values, all known beforehand, and every series is there from the start. Which process it is says `instance`, which
  Prometheus adds.
* Everything is counted once, by the service that knows it best, so a sum over a cluster is right.
* `process_cpu_seconds_total`, `process_resident_memory_bytes` and their like are those of prometheus-client.

The dashboards in [`deploy/grafana/dashboards`](../deploy/grafana/dashboards) show all of them, and some of
[the gateway's own](operations.md#5-watching); they are written by `python -m scripts.dashboards`.
How Prometheus finds the processes stands in
[`deploy/prometheus/prometheus.yml`](../deploy/prometheus/prometheus.yml).
"""

VLLM = """\
## Under vLLM's names

With the setting `vllm_metrics` of coordinators and verifiers, which is off by default, these are there as well, so that a dashboard that
was made for vLLM has data. Each means what it means in vLLM (0.32, V1 engine), and has its labels.
"""

NOT_VLLM = """\
What looks alike and is not the same is not exposed under vLLM's name:
"""

ALERTS = """\
## Alerts

From [`deploy/prometheus/rules`](../deploy/prometheus/rules), with unit tests in
[`deploy/prometheus/tests`](../deploy/prometheus/tests/alerts.yml).
"""


def _row(metric: Metric) -> str:
    kind = f"{metric.kind.value}, exemplars" if metric.exemplars else metric.kind.value
    text = metric.help + (f" *On no dashboard: {metric.unused}*" if metric.unused else "")
    return f"| `{_name(metric)}` | {kind} | {'; '.join(_labels(metric))} | {text} |"


def _name(metric: Metric) -> str:
    return metric.series[0] if metric.kind is not Kind.HISTOGRAM else metric.name


def _labels(metric: Metric) -> Iterator[str]:
    for label in metric.labels:
        yield f"{label.name}: {', '.join(f'`{value}`' for value in label.values)}"


def _vllm() -> Iterator[str]:
    yield VLLM
    yield "| metric | kind | of | labels | meaning |"
    yield "|---|---|---|---|---|"
    for metric in VLLM_TABLE:
        services = ", ".join(service.value for service in metric.services)
        labels = ", ".join(label.name for label in metric.labels)
        yield f"| `{_name(metric)}` | {metric.kind.value} | {services} | {labels} | {metric.help} |"
    yield ""
    for label in (MODEL_NAME, ENGINE, POSITION):
        yield f"* `{label.name}`: {', '.join(label.values)}."
    yield ""
    yield NOT_VLLM
    yield from (f"* `{name}`: {why}." for name, why in DIFFERENT.items())
    yield ""


def _bounds() -> Iterator[str]:
    grouped: dict[tuple[float, ...], list[str]] = {}
    for metric in TABLE:
        if metric.kind is Kind.HISTOGRAM:
            grouped.setdefault(metric.buckets, []).append(metric.name)
    for buckets, names in grouped.items():
        yield f"* {', '.join(f'`{name}`' for name in names)}: {', '.join(f'{bound:g}' for bound in buckets)}"


def _alerts() -> Iterator[str]:
    for rule in rules():
        if "alert" not in rule:
            continue
        notes = {name: " ".join(text.split()) for name, text in rule["annotations"].items()}
        after = f", after {rule['for']}" if "for" in rule else ""
        yield f"### {rule['alert']}"
        yield ""
        yield f"{rule['labels']['severity'].capitalize()}{after}. {notes['meaning']}"
        yield ""
        yield "```promql"
        yield rule["expr"].strip()
        yield "```"
        yield ""
        yield f"**What to do.** {notes['action']}"
        yield ""


def page() -> str:
    """docs/metrics.md as the code has it."""
    lines = [INTRODUCTION]
    for service in Service:
        lines += [f"## {service.value}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        lines += [*(_row(metric) for metric in metrics_of(service)), ""]
    lines += [*_vllm()]
    lines += ["## Bounds of the histograms", "", *_bounds(), "", ALERTS, *_alerts()]
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    raise SystemExit(finish(PAGE, page(), "print_metrics", __doc__))
