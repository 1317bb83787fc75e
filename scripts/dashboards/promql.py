"""Queries over the metric table. They take the table's own metrics, so a query cannot name a series that no process exposes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specsplit.observe.metric import Kind, Metric, Service

WINDOW = "[$__rate_interval]"


@dataclass(frozen=True)
class Source:
    """Which processes a dashboard is about."""

    matchers: Mapping[Service, str] = field(default_factory=dict[Service, str])
    """By service, the label matcher that selects its processes; all of them where there is none."""

    def series(self, metric: Metric, suffix: str = "", where: str = "") -> str:
        """A selector of a metric's series, with a matcher of its own beside the dashboard's."""
        one = len(metric.services) == 1  # of what several services expose, the processes of all are shown
        own = self.matchers.get(metric.services[0], "") if one else ""
        matchers = ", ".join(each for each in (own, where) if each)
        name = metric.name + ("_total" if metric.kind is Kind.COUNTER else suffix)
        return f"{name}{{{matchers}}}" if matchers else name

    def rate(self, metric: Metric, by: str = "", where: str = "") -> str:
        """How fast a counter goes up, per second, summed."""
        return f"sum{_by(by)} (rate({self.series(metric, where=where)}{WINDOW}))"

    def level(self, metric: Metric, by: str = "", where: str = "") -> str:
        """Where a gauge stands, summed."""
        return f"sum{_by(by)} ({self.series(metric, where=where)})"

    def average(self, metric: Metric, by: str = "") -> str:
        """Where a gauge stands, averaged over processes."""
        return f"avg{_by(by)} ({self.series(metric)})"

    def mean(self, metric: Metric, by: str = "") -> str:
        """The mean of what a histogram observed."""
        total, count = (f"sum{_by(by)} (rate({self.series(metric, suffix)}{WINDOW}))" for suffix in ("_sum", "_count"))
        return f"{total} / {count}"

    def course(self, metric: Metric, by: str = "") -> str:
        """How a metric goes, whatever its kind: a counter's rate, a gauge's level, a histogram's mean."""
        ways = {Kind.COUNTER: self.rate, Kind.GAUGE: self.level, Kind.HISTOGRAM: self.mean}
        return ways[metric.kind](metric, by)

    def quantile(self, share: float, metric: Metric, by: str = "") -> str:
        """What a share of a histogram's observations do not exceed."""
        within = f"{by}, le" if by else "le"
        return f"histogram_quantile({share}, sum by ({within}) (rate({self.series(metric, '_bucket')}{WINDOW})))"

    def buckets(self, metric: Metric) -> str:
        """For a heatmap: observations per bucket and second."""
        return f"sum by (le) (rate({self.series(metric, '_bucket')}{WINDOW}))"


def share(part: str, whole: str) -> str:
    """One rate as a share of another."""
    return f"{part} / {whole}"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
