"""A dashboard of rows, with what all of ours have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TypeAlias

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, stat, timeseries
from grafana_foundation_sdk.models import dashboard

from scripts.dashboards.panels import PROMETHEUS
from specsplit.observe.metric import Metric, Service
from specsplit.observe.metric_table import EXPANSIONS, STEPS

TAG = "specsplit"
CHOICES: Mapping[str, Metric] = {"verifier": STEPS, "drafter": EXPANSIONS}
"""Variables that choose processes, and the metric by which they are found."""
CHOSEN: Mapping[Service, str] = {
    Service.VERIFIER: 'instance=~"$verifier"',
    Service.DRAFTER: 'instance=~"$drafter"',
}

Panel: TypeAlias = heatmap.Panel | stat.Panel | timeseries.Panel
Row: TypeAlias = tuple[str, Sequence[Panel]]
"""(title, panels)."""


def page(uid: str, title: str, description: str, rows: Sequence[Row], *, choices: bool) -> dashboard.Dashboard:
    """A dashboard. `choices`: let the reader choose verifiers and drafters."""
    made = builders.Dashboard(title).uid(uid).description(description).tags([TAG]).readonly()
    made = made.refresh("10s").time("now-30m", "now").timezone("browser")
    made = made.tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    made = made.link(
        builders.DashboardLink("specsplit")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .keep_time(True)
        .include_vars(True)
    )
    made = made.with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for name, metric in CHOICES.items() if choices else ():
        made = made.with_variable(_choice(name, metric))
    numbers = count(1)
    for row, panels in rows:
        made = made.with_row(builders.Row(row).id(next(numbers)))
        for panel in panels:
            made = made.with_panel(panel.id(next(numbers)))
    return made.build()


def _choice(name: str, metric: Metric) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(name.capitalize())
        .datasource(PROMETHEUS)
        .query(f"label_values({metric.series[0]}, instance)")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )
