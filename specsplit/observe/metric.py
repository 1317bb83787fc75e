"""What a metric is: the words of `metric_table`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Service(StrEnum):
    """The services that expose metrics."""

    COORDINATOR = "coordinator"
    VERIFIER = "verifier"
    DRAFTER = "drafter"


class Kind(StrEnum):
    """The kinds of metrics, by how their values move."""

    COUNTER = "counter"
    """Only up, from 0 at the start of the process."""
    GAUGE = "gauge"
    """Up and down."""
    HISTOGRAM = "histogram"
    """Counts of observations at or below each of a few bounds, and their sum."""


@dataclass(frozen=True)
class Label:
    """A label, which tells the series of one metric apart."""

    name: str
    values: tuple[str, ...]
    """Every value there is."""


@dataclass(frozen=True)
class Metric:
    """One family of series."""

    name: str
    kind: Kind
    services: tuple[Service, ...]
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, ascending, without the infinite one."""
    exemplars: bool = False
    """True if observations of traced requests leave the id of their trace."""
    unused: str = ""
    """Why no dashboard and no rule shows it; empty if one does."""

    @property
    def unit(self) -> str:
        """Base unit as OpenMetrics wants it: the end of the name; empty for plain counts."""
        return next((unit for unit in ("seconds", "bytes") if self.name.endswith(f"_{unit}")), "")

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series, as queries use them."""
        suffixes = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
        return tuple(self.name + suffix for suffix in suffixes[self.kind])


def steps_of_125(lowest: int, highest: int) -> tuple[float, ...]:
    """1, 2 and 5 times every power of ten from 10**lowest up to 10**highest, which is the last."""
    decades = range(lowest, highest)
    return (*(float(f"{digit}e{power}") for power in decades for digit in (1, 2, 5)), float(f"1e{highest}"))
