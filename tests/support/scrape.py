"""Metrics of whole processes, scraped as Prometheus would."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_METRICS = re.compile(r"http://([\d.]+:\d+)/metrics")


@dataclass(frozen=True)
class Scraped:
    """What one process showed at one time."""

    samples: Sequence[Sample]

    def __call__(self, wanted: str, **labels: str) -> float:
        """The sum over the series of a sample's name that have these labels."""
        return sum(s.value for s in self.samples if s.name == wanted and labels.items() <= s.labels.items())


class Places:
    """Where each process serves its metrics, by name."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def hear(self, name: str, line: str) -> None:
        """Take in a line of a process's log."""
        if place := _METRICS.search(line):
            self.found[name] = place[1]

    def scraped(self, name: str) -> Scraped:
        """The values of one process now."""
        with urlopen(f"http://{self.found[name]}/metrics", timeout=10) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return Scraped([sample for family in families for sample in family.samples])


def sums(url: str) -> dict[str, float]:
    """What is at an address of metrics, summed up by name of sample."""
    with urlopen(url, timeout=20) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def eventually(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    """Wait until something holds; `what` says what it was if it does not in time."""
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.2)
