"""Counters, gauges and histograms of one process, built from the metric table and read by prometheus-client.

Written on one thread, the event loop's, so nothing is locked and adding is adding. The exposition's thread reads: it may see a step
half counted, never a number that was not there. A histogram takes several equal observations at once, since a step brings bursts.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from specsplit.observe.metric import Kind, Metric, Service
from specsplit.observe.metric_table import metrics_of


class Counter:
    """One series that goes up."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, count: float = 1) -> None:
        self.value += count

    def stand_at(self, total: int) -> None:
        """Somebody else counts: this is what they have now, no less than before."""
        self.value = total


class Gauge:
    """One series that goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value


class Share:
    """One gauge as a share of another, read when it is asked for; 0 where the other is 0."""

    __slots__ = ("_part", "_whole")

    def __init__(self, part: Gauge, whole: Gauge) -> None:
        self._part = part
        self._whole = whole

    @property
    def value(self) -> float:
        return self._part.value / self._whole.value if self._whole.value else 0.0


class Histogram:
    """One series of buckets; the last is what exceeds every bound."""

    __slots__ = ("_bounds", "_clock", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float], clock: Callable[[], float] = time.time) -> None:
        """`clock` gives the seconds since 1970 that an exemplar is stamped with."""
        self._bounds = tuple(bounds)
        self._clock = clock
        self.counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0
        self.exemplars: list[Exemplar | None] = [None] * (len(self._bounds) + 1)

    def observe(self, value: float, times: int = 1, trace_id: str = "") -> None:
        """`value` was seen `times` times; `trace_id`, if there is one, becomes its bucket's exemplar."""
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += times
        self.total += value * times
        if trace_id:
            self.exemplars[bucket] = Exemplar({"trace_id": trace_id}, value, self._clock())

    def buckets(self) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
        """(upper bound, observations at or below it, exemplar if there is one)."""
        bounds = (*map(_number, self._bounds), "+Inf")
        for bound, count, exemplar in zip(bounds, accumulate(self.counts), self.exemplars, strict=True):
            yield (bound, float(count)) if exemplar is None else (bound, float(count), exemplar)


Instrument = Counter | Gauge | Share | Histogram
_T = TypeVar("_T", Counter, Gauge, Histogram)


def _number(bound: float) -> str:
    return repr(float(bound))


class Instruments(Collector):
    """The metrics of one service: every series of the table from the start, and a reader for prometheus-client.

    A label in `fixed` has these values in this process, and only the series with them are made.
    """

    def __init__(self, service: Service, fixed: Mapping[str, Sequence[str]] | None = None) -> None:
        self._series: dict[Metric, dict[tuple[str, ...], Instrument]] = {
            metric: {values: _made(metric) for values in _combinations(metric, fixed or {})}
            for metric in metrics_of(service)
        }

    def counter(self, metric: Metric, *labels: str) -> Counter:
        """The series of a counter with these label values. KeyError if the table has none."""
        return _expected(self._series[metric][labels], Counter)

    def gauge(self, metric: Metric, *labels: str) -> Gauge:
        """The series of a gauge with these label values. KeyError if the table has none."""
        return _expected(self._series[metric][labels], Gauge)

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        """The series of a histogram with these label values. KeyError if the table has none."""
        return _expected(self._series[metric][labels], Histogram)

    def also(self, metric: Metric, labels: tuple[str, ...], instrument: Instrument) -> None:
        """Expose an instrument as a series of a metric that is not in the table, under a second name for instance."""
        self._series.setdefault(metric, {})[labels] = instrument

    def collect(self) -> Iterable[Family]:
        """Collect the families that prometheus-client renders."""
        for metric, series in self._series.items():
            yield _family(metric, series)


def _combinations(metric: Metric, fixed: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    yield from product(*(fixed.get(label.name, label.values) for label in metric.labels))


def _made(metric: Metric) -> Instrument:
    match metric.kind:
        case Kind.COUNTER:
            return Counter()
        case Kind.GAUGE:
            return Gauge()
        case Kind.HISTOGRAM:
            return Histogram(metric.buckets)


def _expected(instrument: Instrument, kind: type[_T]) -> _T:
    if not isinstance(instrument, kind):
        raise TypeError(f"the table has a {type(instrument).__name__.lower()}, not a {kind.__name__.lower()}")
    return instrument


def _family(metric: Metric, series: dict[tuple[str, ...], Instrument]) -> Family:
    names = [label.name for label in metric.labels]
    counter = CounterMetricFamily(metric.name, metric.help, labels=names, unit=metric.unit)
    gauge = GaugeMetricFamily(metric.name, metric.help, labels=names, unit=metric.unit)
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=names, unit=metric.unit)
    for labels, instrument in tuple(series.items()):  # at once: the event loop may add one meanwhile
        match instrument:
            case Counter():
                counter.add_metric(labels, instrument.value)
            case Gauge() | Share():
                gauge.add_metric(labels, instrument.value)
            case Histogram():
                histogram.add_metric(labels, list(instrument.buckets()), instrument.total)
    return {Kind.COUNTER: counter, Kind.GAUGE: gauge, Kind.HISTOGRAM: histogram}[metric.kind]
