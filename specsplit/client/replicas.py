"""The coordinators that a client may ask: any of them serves the whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import randrange
from typing import Final, Generic, TypeVar

from specsplit.clock import Clock, SystemClock
from specsplit.settings.addresses import DNS, Addresses

FAILED_S: Final = 5.0
"""For so long one that could not be asked is the last choice."""

C = TypeVar("C")
S = TypeVar("S")


@dataclass(eq=False, slots=True)
class Replica(Generic[C, S]):
    """One coordinator; or all of a name, among which gRPC chooses."""

    peer: str
    """What it is called in errors."""
    channel: C
    stub: S
    failed_at: float | None = None


class Replicas(Generic[C, S]):
    """The coordinators of one client, which are asked in turn."""

    def __init__(self, text: str, dial: Callable[[str], C], stub: Callable[[C], S], clock: Clock | None = None) -> None:
        """`text`: host:port, several with commas between, dns:///name:port for all of a name. Raises InvalidRequest for what is none."""
        named = Addresses.read("address", text)
        self._clock = clock or SystemClock()
        self._all: list[Replica[C, S]] = []
        for target in (*named.listed, *(f"{DNS}{name}" for name in named.names)):
            channel = dial(target)
            self._all.append(Replica(f"coordinator {target}", channel, stub(channel)))
        self.several = len(self._all) > 1 or bool(named.names)
        """True if there may be another one to go to."""
        self._turns = count(randrange(len(self._all)))
        """Clients begin with different ones."""

    def __iter__(self) -> Iterator[Replica[C, S]]:
        """Iterate over all, in the order in which they were given."""
        return iter(self._all)

    def in_turn(self) -> Sequence[Replica[C, S]]:
        """All of them, the one whose turn it is first; those that have failed lately come last."""
        first, now = next(self._turns) % len(self._all), self._clock.now()
        turned = [*self._all[first:], *self._all[:first]]
        return sorted(turned, key=lambda each: each.failed_at is not None and now - each.failed_at < FAILED_S)

    def failed(self, replica: Replica[C, S]) -> None:
        """Note that this one could not be asked."""
        replica.failed_at = self._clock.now()
