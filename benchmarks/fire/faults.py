"""What is done to processes, and when, drawn on a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final

LOST_AFTER_S: Final = 2.0
"""A member that is silent for so long is lost: `lost_after_ms` of the coordinator, at its default."""


class Deed(StrEnum):
    """What is done to a process."""

    KILL = "killed"
    """SIGKILL, and started again."""
    PAUSE = "stopped briefly"
    """SIGSTOP and SIGCONT, before anybody takes it for lost."""
    STOP = "stopped until lost"
    """SIGSTOP and SIGCONT, after everybody has taken it for lost."""
    DRAIN = "drained"
    """SIGTERM, and started again when it has left."""


class Service(StrEnum):
    """Whose process it is."""

    COORDINATOR = "coordinator"
    VERIFIER = "verifier"
    DRAFTER = "drafter"


_FOR_S: Final = {
    Deed.KILL: (0.0, 2.0), Deed.PAUSE: (0.1, 0.6 * LOST_AFTER_S), Deed.STOP: (1.5 * LOST_AFTER_S, 3 * LOST_AFTER_S),
    Deed.DRAIN: (0.0, 2.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One deed that is done to one process."""

    service: Service
    deed: Deed
    place: int
    """The process that it is done to, by its place among those of the service."""
    pause_s: float
    """Seconds before the deed, with everybody there."""
    for_s: float
    """Seconds until the process goes on, or, from when it has ended, until another is started in its place."""
    joined: bool
    """Another fault follows while this one lasts."""

    @property
    def kind(self) -> str:
        return f"{self.service} {self.deed}"


def faults(chance: random.Random, places: Sequence[Service]) -> Iterator[Fault]:
    """Faults for ever, of a cluster of these processes: every kind once, in any order, then every kind once more.

    One in five is followed by another while it lasts.
    """
    counts = {service: places.count(service) for service in Service if service in places}
    while True:
        kinds = list(product(counts, Deed))
        chance.shuffle(kinds)
        for service, deed in kinds:
            yield Fault(
                service, deed, chance.randrange(counts[service]), chance.uniform(0.2, 2.0), chance.uniform(*_FOR_S[deed]),
                chance.random() < 0.2,
            )  # fmt: skip
