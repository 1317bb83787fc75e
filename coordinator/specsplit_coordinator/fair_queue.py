"""Who is served next: the higher priority first, and within a priority every client in turn. Pure.

Within a priority it is start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996) with one unit of work for everybody:
what a client adds starts where its work before it ends, or now if that is later, and the earliest start is served first. So clients that
wait are served equally often, to within one, however many each has waiting. One client alone is served in the order in which it came.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claim:
    """On whose behalf something waits."""

    client: str = ""
    priority: int = 0
    """The higher, the sooner."""


@dataclass(order=True, frozen=True, slots=True)
class _Entry(Generic[T]):
    """What waits, in the order in which it is served."""

    behind: bool
    """False: it goes ahead of all others."""
    against_priority: int
    start: int
    number: int
    item: T = field(compare=False)
    claim: Claim = field(compare=False)


@dataclass(slots=True)
class _Lane:
    """One priority: units of work from a zero of its own."""

    now: int = 0
    """Where that begins which was served last."""
    ends: dict[str, int] = field(default_factory=dict[str, int])
    """Where the work of each client ends that was served, if that is later."""

    def pass_on(self, entry: _Entry[T]) -> None:
        """Time goes on to where an entry begins that is served."""
        self.now = max(self.now, entry.start)
        self.ends[entry.claim.client] = entry.start + 1
        self.ends = {client: end for client, end in self.ends.items() if end > self.now}


class FairQueue(Generic[T]):
    """Waiting items, each on behalf of a client."""

    def __init__(self) -> None:
        self._entries: list[_Entry[T]] = []
        self._lanes: dict[int, _Lane] = {}
        self._number = 0
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        """In the order in which they are to be served, as it is now."""
        return iter([entry.item for entry in self._entries])

    def __contains__(self, item: T) -> bool:
        return any(entry.item == item for entry in self._entries)

    def count(self, client: str) -> int:
        """How much of a client waits."""
        return self._counts[client]

    def add(self, item: T, claim: Claim, *, ahead: bool = False) -> None:
        """Have it wait its turn, or, `ahead`, before all others but those that came so earlier."""
        self._number += 1
        start = 0 if ahead else self._start(claim)
        insort(self._entries, _Entry(not ahead, 0 if ahead else -claim.priority, start, self._number, item, claim))
        self._counts[claim.client] += 1

    def serve(self, item: T) -> None:
        """Take it out because it is served: time goes on to where it begins."""
        entry = self._pop(item)
        if entry.behind:
            self._lanes[entry.claim.priority].pass_on(entry)

    def remove(self, item: T) -> None:
        """Take it out because it waits no longer."""
        self._pop(item)

    def crowding_out(self, client: str, places: int) -> T | None:
        """What is to give way to so much more of this client where there is no room: the last one of who has most, if that stays more."""
        others = [(count, name) for name, count in self._counts.items() if name != client]
        most, crowd = max(others, default=(0, ""))
        if most <= self.count(client) + places:
            return None
        own = [entry.item for entry in self._entries if entry.claim.client == crowd and entry.behind]
        return own[-1] if own else None

    def _start(self, claim: Claim) -> int:
        lane = self._lanes.setdefault(claim.priority, _Lane())
        waiting = [entry.start + 1 for entry in self._entries if entry.behind and entry.claim == claim]
        return max(lane.now, lane.ends.get(claim.client, 0), *waiting)

    def _pop(self, item: T) -> _Entry[T]:
        index = next(index for index, entry in enumerate(self._entries) if entry.item == item)
        entry = self._entries.pop(index)
        self._counts[entry.claim.client] -= 1
        if not self._counts[entry.claim.client]:
            del self._counts[entry.claim.client]
        return entry
