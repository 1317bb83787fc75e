"""What a soak asks for and whom it kills, drawn on a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NEAR_S: Final = 0.03
"""Half the width of the time around a wave's expected end in which bursts begin that are to meet it."""
WIDTH_S: Final = 0.04
"""Within which all requests of a burst come."""
MOST_AT_ONCE: Final = 6
DRAFTERS: Final = (None, "ngram", "none")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a burst."""

    text: int
    """Which of the known texts."""
    new: int
    """Tokens of the text that are asked for."""
    drafter: str | None
    after_s: float
    """From the beginning of its burst."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that come together."""

    near_end: bool
    """True if the burst begins when the wave is expected to end."""
    pause_s: float
    """Seconds until it begins: from when the last request ended, or from when the wave is expected to end, and before that if negative."""
    requests: tuple[Asked, ...]


def bursts(seed: int, texts: int, longest: int) -> Iterator[Burst]:
    """Bursts for ever, of so many texts of so many tokens. Half are to meet the end of a wave; the others find one, or a parked group."""
    chance = random.Random(f"bursts {seed}")
    while True:
        near_end = chance.random() < 0.5
        early = chance.random() < 0.4
        pause_s = chance.uniform(-NEAR_S, NEAR_S) if near_end else chance.uniform(0.0, 0.05 if early else 2.0)
        others = chance.choice((0, 0, 0, 1, 2, MOST_AT_ONCE - 1))
        after_s = [0.0, *sorted(chance.uniform(0.0, WIDTH_S) for _ in range(others))]
        yield Burst(near_end, pause_s, tuple(_asked(chance, texts, longest, each) for each in after_s))


def _asked(chance: random.Random, texts: int, longest: int, after_s: float) -> Asked:
    new = min(longest, chance.choice((1, 1, 1, 2, 2, 3, 5, 8, 16, longest)))
    return Asked(chance.randrange(texts), new, chance.choice(DRAFTERS), after_s)


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to one rank."""

    after_s: float
    """From when its group was whole, or, for a second one, from the first."""
    rank: int


def kills(seed: int, ranks: int) -> Iterator[tuple[Kill, ...]]:
    """Kills for ever, each of a whole group; one in four is followed by another while the ranks start again."""
    chance = random.Random(f"kills {seed}")
    while True:
        first = Kill(chance.uniform(10.0, 90.0), chance.randrange(ranks))
        again = chance.random() < 0.25
        second = Kill(chance.uniform(0.5, 8.0), chance.randrange(ranks))
        yield (first, second) if again else (first,)
