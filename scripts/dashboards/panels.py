"""Panels as this project draws them: a title, a sentence that says what one looks at, a unit, thresholds where a value can be bad."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from scripts.dashboards.promql import Source
from specsplit.observe import metric_table as table
from specsplit.observe.metric import Kind, Metric

PROMETHEUS = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
TRACES = "specsplit-traces"
"""Uid of the trace store in deploy/grafana/provisioning."""

SHARES = (0.99, 0.9, 0.5)

Threshold = tuple[float | None, str]
"""(from this value on, colour); None: from the lowest."""


@dataclass(frozen=True)
class Query:
    """One expression and what its series are called."""

    expression: str
    legend: str
    exemplars: bool = False


def limits(warn: float, bad: float) -> tuple[Threshold, ...]:
    """Green, yellow from `warn` and red from `bad` on; the other way round if `bad` is below `warn`."""
    if bad > warn:
        return ((None, "green"), (warn, "yellow"), (bad, "red"))
    return ((None, "red"), (bad, "yellow"), (warn, "green"))


def of(source: Source, metric: Metric, by: str = "", called: str = "") -> Query:
    """How a metric goes, by these labels; its series are called by them and by `called`, unless that names labels itself."""
    labels = " ".join(f"{{{{{label}}}}}" for label in by.split(", ") if label)
    legend = called if "{{" in called else f"{labels} {called}".strip()
    return Query(source.course(metric, by), legend)


def chart(
    source: Source, title: str, metric: Metric, by: str = "", *, unit: str = "", says: str = "", called: str = "", **style: Any
) -> timeseries.Panel:  # fmt: skip
    """A metric over time. Sentence and unit are those of the table, unless others are given."""
    return lines(title, says or metric.help, unit or unit_of(metric), [of(source, metric, by, called)], **style)


def times(source: Source, title: str, metric: Metric, *, says: str = "", **style: Any) -> timeseries.Panel:
    """The quantiles of a histogram over time, with the table's sentence unless another is given."""
    return lines(title, says or metric.help, unit_of(metric), percentiles(source, metric), **style)


def unit_of(metric: Metric) -> str:
    """The unit of how a metric goes, as Grafana calls it."""
    if metric.kind is Kind.COUNTER:
        return "Bps" if metric.unit == "bytes" else "cps"
    return {"seconds": "s", "bytes": "bytes"}.get(metric.unit, "none")


def percentiles(source: Source, metric: Metric) -> list[Query]:
    """The quantiles of a histogram that every panel of times shows; exemplars come with the first."""
    return [
        Query(source.quantile(share, metric), f"p{share * 100:g}", exemplars=metric.exemplars and share == SHARES[0])
        for share in SHARES
    ]


def lines(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    stacked: bool = False,
    thresholds: Sequence[Threshold] = (),
    spans: str = "",
    width: int = 8,
    top: float | None = None,
    signed: bool = False,
) -> timeseries.Panel:
    """Values over time. `spans`: name of the spans that a link leads to. `top`: where the axis ends. `signed`: below 0 is shown too."""
    panel = timeseries.Panel().title(title).description(description).unit(unit).span(width).height(8)
    panel = panel if signed else panel.min(0)
    panel = panel.datasource(PROMETHEUS).line_width(1).fill_opacity(30 if stacked else 5).span_nulls(True)
    panel = panel.legend(
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
    ).tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if top is not None:
        panel = panel.max(top)
    if thresholds:
        panel = panel.thresholds(_thresholds(thresholds)).thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    if spans:
        panel = panel.links([link_to_traces(spans)])
    return panel.targets([_target(query, index) for index, query in enumerate(queries)])


def pages_used(source: Source, says: str, **style: Any) -> timeseries.Panel:
    """The share of its KV pages that each member has in use."""
    used, there = (source.level(metric, "job, instance") for metric in (table.KV_PAGES_USED, table.KV_PAGES))
    shown = [Query(f"{used} / {there}", "{{job}} {{instance}}")]
    return lines("KV pages used", says, "percentunit", shown, thresholds=limits(0.8, 0.95), top=1, **style)


def number(
    title: str, description: str, unit: str, expression: str, *, thresholds: Sequence[Threshold] = (), width: int = 3
) -> stat.Panel:
    """The latest value, with its course behind it."""
    panel = stat.Panel().title(title).description(description).unit(unit).span(width).height(4)
    panel = panel.datasource(PROMETHEUS).graph_mode(common.BigValueGraphMode.AREA)
    panel = panel.color_mode(common.BigValueColorMode.VALUE)
    panel = panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.thresholds(_thresholds(thresholds or ((None, "blue"),)))
    return panel.targets([_target(Query(expression, title), 0)])


def distribution(
    title: str,
    description: str,
    unit: str,
    expression: str,
    *,
    exemplars: bool = False,
    spans: str = "",
    width: int = 8,
) -> heatmap.Panel:
    """A histogram over time: how many observations fell where."""
    panel = heatmap.Panel().title(title).description(description).span(width).height(8).datasource(PROMETHEUS)
    panel = panel.y_axis(heatmap.YAxisConfig().unit(unit))
    panel = panel.color(
        heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Viridis").steps(64)
    )
    if spans:
        panel = panel.links([link_to_traces(spans)])
    target = _target(Query(expression, "{{le}}", exemplars), 0).format(PromQueryFormat.HEATMAP)
    return panel.targets([target])


def link_to_traces(span: str) -> builders.DashboardLink:
    """To the trace store: spans of this name, in the dashboard's time range."""
    query = {
        "refId": "A",
        "queryType": "traceql",
        "query": f'{{ name = "{span}" }}',
        "datasource": {"type": "tempo", "uid": TRACES},
    }
    pane = {"datasource": TRACES, "queries": [query], "range": {"from": "FROM", "to": "TO"}}
    panes = quote(json.dumps({"traces": pane}), safe="")
    panes = panes.replace("FROM", "${__from}").replace("TO", "${__to}")  # Grafana puts the dashboard's time there
    return (
        builders.DashboardLink(f"Traces: {span}")
        .type(dashboard.DashboardLinkType.LINK)
        .url(f"/explore?schemaVersion=1&orgId=1&panes={panes}")
        .target_blank(True)
    )


def _target(query: Query, index: int) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).range().datasource(PROMETHEUS)
    made = made.ref_id(chr(ord("A") + index))
    return made.exemplar(True) if query.exemplars else made


def _thresholds(steps: Sequence[Threshold]) -> builders.ThresholdsConfig:
    return (
        builders.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=color) for value, color in steps])
    )
