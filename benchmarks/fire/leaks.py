"""Whether what a process holds grows: the slope of a line, by least squares, through the least of every stretch of its life. Pure.

What callers come and go with lifts single samples, and may do so at the end of a life; what is never given back lifts the least too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from benchmarks.fire.samples import DESCRIPTORS, PAGES, RSS, SESSIONS, TASKS, THREADS, Life, Samples

WARM_UP: Final = 1 / 3
"""The first part of a life, which is left out: caches fill, code is loaded."""
LEAST_SAMPLES: Final = 5
STRETCHES: Final = 12
"""Equal parts of what is judged of a life; of fewer samples each is a part."""
JUDGED_MINUTES: Final = 3.0
"""A shorter life is not judged."""

LEAST_OF_A_SWELLING: Final = 12
"""Of a process with fewer samples nothing is said of how it swells."""
MOST_SWELLING: Final = 64.0
"""MiB that a process may grow in the second half of a run in which it is fed nonsense: caches fill, allocators hold on to what they had."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Growth is a leak if it is more than both: in a minute, and over all samples behind the warm-up."""

    per_minute: float
    in_all: float


BOUNDS: Final[Mapping[str, Bound]] = {
    RSS: Bound(1.0, 32.0), DESCRIPTORS: Bound(0.5, 12.0), THREADS: Bound(0.5, 8.0), TASKS: Bound(1.0, 40.0),
    SESSIONS: Bound(0.5, 8.0), PAGES: Bound(4.0, 200.0),
}  # fmt: skip
"""The bounds of every amount, RSS in MiB."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How one amount grew in one life, behind the warm-up."""

    life: Life
    what: str
    per_minute: float
    minutes: float

    @property
    def leaks(self) -> bool:
        """True if it is above both bounds."""
        bound = BOUNDS[self.what]
        return self.per_minute > bound.per_minute and self.per_minute * self.minutes > bound.in_all

    @property
    def told(self) -> str:
        return f"{self.what} of {self.life.name} (pid {self.life.pid}) by {self.per_minute:.3g} a minute for {self.minutes:.1f} minutes"


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line that fits best, in y for each x; 0 if all x are the same."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def least(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The sample with the least y of every stretch."""
    count = min(STRETCHES, len(points))
    bounds = [len(points) * index // count for index in range(count + 1)]
    return [min(points[first:end], key=lambda point: point[1]) for first, end in pairwise(bounds)]


def growths(taken: Samples) -> Iterator[Growth]:
    """Every amount of every life that has samples enough."""
    for life, sampled in taken.lives.items():
        warm = sampled[round(len(sampled) * WARM_UP) :]
        if len(warm) < LEAST_SAMPLES or sampled[-1][0] - sampled[0][0] < JUDGED_MINUTES * 60:
            continue
        minutes = (warm[-1][0] - warm[0][0]) / 60
        for what in BOUNDS:
            points = [(at / 60, amounts[what]) for at, amounts in warm if what in amounts]
            if len(points) >= LEAST_SAMPLES:
                yield Growth(life, what, slope(least(points)), minutes)


def swellings(taken: Samples) -> dict[Life, float]:
    """MiB of RSS by which each process grew in the second half of its samples: from the median of its first quarter to that of its last."""
    found: dict[Life, float] = {}
    for life, sampled in taken.lives.items():
        half = [amounts[RSS] for _, amounts in sampled[len(sampled) // 2 :]]
        if len(sampled) >= LEAST_OF_A_SWELLING:
            quarter = len(half) // 4
            found[life] = median(half[-quarter:]) - median(half[:quarter])
    return found
