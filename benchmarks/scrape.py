"""The metrics of a process, as a scraper reads them."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Final, Self, TypeVar

from prometheus_client.parser import text_string_to_metric_families

_PLACE: Final = re.compile(r"http://\S*?/metrics")


@dataclass(frozen=True, slots=True)
class Sums:
    """Numbers that only rise while a process runs: what was added between two looks at them is their difference."""

    def __sub__(self, before: Self) -> Self:
        return type(self)(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(before), strict=True)))

    def __add__(self, other: Self) -> Self:
        return type(self)(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


_Sums = TypeVar("_Sums", bound=Sums)


def summed(kind: type[_Sums], fields: Mapping[str, str], metrics: str) -> _Sums:
    """Sums since start, of what metrics say: the field of `kind` for each name of a sample. Raises KeyError if one is missing."""
    found = {fields[name]: value for name, value in samples(metrics) if name in fields}
    return kind(**{field: found[field] for field in fields.values()})


def place_of(line: str) -> str | None:
    """Where the metrics are that a line of a process's log tells of; None if it tells of none."""
    told = _PLACE.search(line)
    return told[0] if told else None


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
