"""A queue that serves higher priorities first, and within a priority serves clients fairly. Pure.

Within a priority it is start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996) with entries of one unit each. The
start tag of an entry is the finish tag of the entry that its client added before, or the virtual time if that is later; the entry with
the least start tag is served first. So clients that wait are served equally often, to within one, however many entries each has. The
entries of one client are served in order of arrival.
An entry that is removed unserved gives its time back: the later entries of its client get the start tags that they would have had
without it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class QueueOwner:
    """The request that entries of the queue belong to: those of all its choices have the same owner."""

    client: str = ""
    priority: int = 0
    """Requests of higher priority are served sooner."""
    begun: bool = False
    """True once an entry of the request has been served."""

    @property
    def flow(self) -> tuple[int, str]:
        """Priority and client: entries of one flow are served in order of arrival."""
        return self.priority, self.client


@dataclass(order=True, frozen=True, slots=True)
class _Entry(Generic[T]):
    """An item that waits. Entries sort in the order in which they are served."""

    behind: bool
    """False if it was added `ahead` of all others."""
    against_priority: int
    start: int
    number: int
    item: T = field(compare=False)
    owner: QueueOwner = field(compare=False)
    arrived_at: int = field(compare=False)
    """The virtual time of its level when it was added."""


@dataclass(slots=True)
class _PriorityLevel:
    """The virtual time of one priority."""

    now: int = 0
    """The virtual time: the start tag of the entry that was served last."""
    finish_tags: dict[str, int] = field(default_factory=dict[str, int])
    """The finish tag of the entry served last of each client, if it is later than the virtual time."""

    def advance_to(self, entry: _Entry[T]) -> None:
        """Advance the virtual time to an entry that is served, which may be behind others that have to wait."""
        self.now = max(self.now, entry.start)
        self.finish_tags[entry.owner.client] = max(self.finish_tags.get(entry.owner.client, 0), entry.start + 1)
        self.finish_tags = {client: tag for client, tag in self.finish_tags.items() if tag > self.now}


class FairQueue(Generic[T]):
    """Waiting items, each of which has an owner."""

    def __init__(self) -> None:
        self._entries: list[_Entry[T]] = []
        self._levels: dict[int, _PriorityLevel] = {}
        self._number = 0
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items in the order in which they are to be served now."""
        return iter([entry.item for entry in self._entries])

    def __contains__(self, item: T) -> bool:
        return any(entry.item == item for entry in self._entries)

    def count(self, client: str) -> int:
        """Count the items of a client."""
        return self._counts[client]

    def add(self, item: T, owner: QueueOwner, *, ahead: bool = False) -> None:
        """Add an item; with `ahead` it is served before all others but those that were added `ahead` earlier."""
        self._number += 1
        arrived_at, start = (0, 0) if ahead else self._start(owner)
        priority = 0 if ahead else owner.priority
        insort(self._entries, _Entry(not ahead, -priority, start, self._number, item, owner, arrived_at))
        self._counts[owner.client] += 1

    def serve(self, item: T) -> None:
        """Remove an item that is served, and advance the virtual time."""
        entry = self._pop(item)
        entry.owner.begun = True
        if entry.behind:
            self._levels[entry.owner.priority].advance_to(entry)

    def remove(self, item: T) -> None:
        """Remove an item that is not served; the later items of its flow move up."""
        gone = self._pop(item)
        if gone.behind:
            self._move_up(gone)

    def victims_for(self, client: str, places: int, wanted: int) -> Sequence[QueueOwner]:
        """Choose requests to evict so that a client that would then have `places` here gets `wanted` of them; none if they are too few.

        The victim is always the last request of the client that has the most places here, as long as that is more than `places`. A request
        that has begun is never a victim.
        """
        waiting = Counter(entry.owner for entry in self._entries if entry.behind and not entry.owner.begun)
        counts, victims, freed = self._counts.copy(), list[QueueOwner](), 0
        while freed < wanted:
            able = [owner for owner in reversed(waiting) if owner.client != client and counts[owner.client] > places]
            if not able:
                return ()
            victims.append(last := max(able, key=lambda owner: counts[owner.client]))
            counts[last.client] -= waiting[last]
            freed += waiting.pop(last)
        return victims

    def _start(self, owner: QueueOwner) -> tuple[int, int]:
        """The virtual time of the level, and the start tag of an entry that is added for this owner now."""
        level = self._levels.setdefault(owner.priority, _PriorityLevel())
        waiting = [entry.start + 1 for entry in self._flow(owner)]
        return level.now, max(level.now, level.finish_tags.get(owner.client, 0), *waiting)

    def _flow(self, owner: QueueOwner) -> list[_Entry[T]]:
        """The waiting entries of the flow that an owner is of, in order."""
        return [entry for entry in self._entries if entry.behind and entry.owner.flow == owner.flow]

    def _move_up(self, gone: _Entry[T]) -> None:
        free, moved = gone.start, dict[int, _Entry[T]]()
        for entry in self._flow(gone.owner):
            if entry.start > gone.start:
                start = max(entry.arrived_at, free)
                moved[entry.number] = replace(entry, start=start)
                free = start + 1
        if moved:
            self._entries = sorted(moved.get(entry.number, entry) for entry in self._entries)

    def _pop(self, item: T) -> _Entry[T]:
        index = next(index for index, entry in enumerate(self._entries) if entry.item == item)
        entry = self._entries.pop(index)
        self._counts[entry.owner.client] -= 1
        if not self._counts[entry.owner.client]:
            del self._counts[entry.owner.client]
        return entry
