"""Who is served next: the higher priority first, and within a priority every client in turn. Pure.

Within a priority it is start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996) with one unit of work for everybody:
what a client adds starts where its work before it ends, or now if that is later, and the earliest start is served first. So clients that
wait are served equally often, to within one, however many each has waiting. One client alone is served in the order in which it came.
What leaves unserved gives its time back: whatever its client has behind it starts as early as if it had never been there.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Claim:
    """On whose behalf something waits: one request. All that waits for the request has the same claim."""

    client: str = ""
    priority: int = 0
    """Requests of higher priority are served sooner."""
    begun: bool = False
    """Some of what waited for the request has been served."""

    @property
    def line(self) -> tuple[int, str]:
        """Priority and client: within a line the order is that of arrival."""
        return self.priority, self.client


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
    came: int = field(compare=False)
    """Where the lane's time was when it came."""


@dataclass(slots=True)
class _Lane:
    """One priority: units of work from a zero of its own."""

    now: int = 0
    """Where the work begins that was served last."""
    ends: dict[str, int] = field(default_factory=dict[str, int])
    """Where the work of each client that was served ends, if that is later."""

    def pass_on(self, entry: _Entry[T]) -> None:
        """Time goes on to where an entry begins that is served, which may be behind others that have to wait."""
        self.now = max(self.now, entry.start)
        self.ends[entry.claim.client] = max(self.ends.get(entry.claim.client, 0), entry.start + 1)
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
        came, start = (0, 0) if ahead else self._start(claim)
        priority = 0 if ahead else claim.priority
        insort(self._entries, _Entry(not ahead, -priority, start, self._number, item, claim, came))
        self._counts[claim.client] += 1

    def serve(self, item: T) -> None:
        """Take it out because it is served: time goes on to where it begins."""
        entry = self._pop(item)
        entry.claim.begun = True
        if entry.behind:
            self._lanes[entry.claim.priority].pass_on(entry)

    def remove(self, item: T) -> None:
        """Take it out because it waits no longer: what its client has behind it moves up."""
        gone = self._pop(item)
        if gone.behind:
            self._move_up(gone)

    def crowding_out(self, client: str, places: int, wanted: int) -> Sequence[Claim]:
        """The requests that are to give way for `wanted` places to a client that would have so many `places` here then; none if that
        many cannot be had.

        It is always the last request in the queue of who has most there, as long as that is more than the client would have. One of which
        something has been served stays.
        """
        waiting = Counter(entry.claim for entry in self._entries if entry.behind and not entry.claim.begun)
        counts, victims, freed = self._counts.copy(), list[Claim](), 0
        while freed < wanted:
            crowd = [claim for claim in reversed(waiting) if claim.client != client and counts[claim.client] > places]
            if not crowd:
                return ()
            victims.append(last := max(crowd, key=lambda claim: counts[claim.client]))
            counts[last.client] -= waiting[last]
            freed += waiting.pop(last)
        return victims

    def _start(self, claim: Claim) -> tuple[int, int]:
        """Where the lane's time is, and where the work begins that is added for this request now."""
        lane = self._lanes.setdefault(claim.priority, _Lane())
        waiting = [entry.start + 1 for entry in self._line(claim)]
        return lane.now, max(lane.now, lane.ends.get(claim.client, 0), *waiting)

    def _line(self, claim: Claim) -> list[_Entry[T]]:
        """What waits in the line of this request, in order."""
        return [entry for entry in self._entries if entry.behind and entry.claim.line == claim.line]

    def _move_up(self, gone: _Entry[T]) -> None:
        free, moved = gone.start, dict[int, _Entry[T]]()
        for entry in self._line(gone.claim):
            if entry.start > gone.start:
                start = max(entry.came, free)
                moved[entry.number] = replace(entry, start=start)
                free = start + 1
        if moved:
            self._entries = sorted(moved.get(entry.number, entry) for entry in self._entries)

    def _pop(self, item: T) -> _Entry[T]:
        index = next(index for index, entry in enumerate(self._entries) if entry.item == item)
        entry = self._entries.pop(index)
        self._counts[entry.claim.client] -= 1
        if not self._counts[entry.claim.client]:
            del self._counts[entry.claim.client]
        return entry
