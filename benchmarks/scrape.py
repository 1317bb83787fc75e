"""The metrics of a process, as a scraper reads them."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families


def sum_of(metrics: str, name: str) -> float:
    """The sum of all samples of that name, whatever their labels."""
    return sum(value for sample, value in samples(metrics) if sample == name)


def fetched(url: str, timeout_s: float = 30.0) -> str:
    """What is at an address. Raises OSError."""
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        return answer.read().decode()


def samples(metrics: str) -> Iterable[tuple[str, float]]:
    """Every sample: its name, and its value."""
    return ((sample.name, sample.value) for each in text_string_to_metric_families(metrics) for sample in each.samples)
