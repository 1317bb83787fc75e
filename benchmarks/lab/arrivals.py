"""When requests come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Protocol


class Arrivals(Protocol):
    """A source of requests."""

    @property
    def at_once(self) -> int | None:
        """Requests that are there at the same time: a new one comes whenever one ends. None: they come when `moments` says."""
        ...

    def moments(self) -> Iterator[float]:
        """The seconds at which they come, in order, for ever."""
        ...


@dataclass(frozen=True)
class Closed:
    """`at_once` callers, each of whom sends a request when its last one is done."""

    at_once: int = 1

    def moments(self) -> Iterator[float]:
        """All that may be there come at the beginning."""
        return iter([0.0] * self.at_once)


ONE_CALLER = Closed()


@dataclass(frozen=True)
class Steady:
    """One request after the other, evenly."""

    per_s: float
    at_once = None

    def moments(self) -> Iterator[float]:
        """The first comes at the beginning."""
        return (number / self.per_s for number in count())


@dataclass(frozen=True)
class Poisson:
    """Requests that know nothing of one another."""

    per_s: float
    seed: int = 0
    at_once = None

    def moments(self) -> Iterator[float]:
        """The gaps are drawn on the seed."""
        chance = random.Random(self.seed)
        return accumulate(chance.expovariate(self.per_s) for _ in count())


@dataclass(frozen=True)
class Burst:
    """`size` requests at once, again and again."""

    size: int
    every_s: float
    at_once = None

    def moments(self) -> Iterator[float]:
        """The first burst comes at the beginning."""
        return (number // self.size * self.every_s for number in count())


@dataclass(frozen=True)
class Trace:
    """Requests at recorded moments, and none after them."""

    seconds: tuple[float, ...]
    at_once = None

    def moments(self) -> Iterator[float]:
        return iter(sorted(self.seconds))
