"""What each drafter has brought, and what it brought lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

HALF_LIFE_S = 15.0
"""After so long a step counts half of what it did."""
FORGOTTEN = 0.01
"""Steps: who has been seen less than this, and drafts for nobody, is not told of."""


RecordKey = tuple[str, bool]
"""Address of a drafter, and whether sessions are sampled: some drafters bring much to greedy text and next to nothing to sampled text."""


@dataclass(slots=True)
class DrafterSums:
    """Sums over the steps of one drafter: over all of them, or over the last, where what is older counts less and less."""

    steps: float = 0
    """Session steps that ended with a commit to it."""
    accepted: float = 0
    """Nodes of the drafter accepted in these steps."""
    hits: float = 0
    held_s: float = 0.0
    """For how long sessions were held back for it."""
    round_trips: float = 0
    round_trip_s: float = 0.0
    """Seconds that the round trips took, the sum."""

    def followed_by(self, before: DrafterSums, now: DrafterSums, share: float) -> DrafterSums:
        """`share` of these sums, and what came between two looks at the record, or since it was begun anew."""
        if now.steps < before.steps:
            before = NOTHING
        columns = [(getattr(self, name), getattr(now, name), getattr(before, name)) for name in DrafterSums.__slots__]
        return DrafterSums(*(share * each + after - earlier for each, after, earlier in columns))


NOTHING = DrafterSums()


@dataclass(slots=True)
class DrafterRecord(DrafterSums):
    """All that one drafter has done for greedy, or for sampled, sessions of a verifier. The sums only go up."""

    sessions: int = 0
    """Sessions that the drafter drafts for now."""
    movable: int = 0
    """Sessions among these whose callers asked for no kind of drafter."""

    @property
    def sums(self) -> DrafterSums:
        """The sums as they stand."""
        return DrafterSums(*(getattr(self, name) for name in DrafterSums.__slots__))

    def begin(self, *, movable: bool) -> None:
        """Note that the drafter drafts for one more session."""
        self.sessions += 1
        self.movable += movable

    def end(self, *, movable: bool) -> None:
        """Note that the drafter drafts for one session less."""
        self.sessions -= 1
        self.movable -= movable

    def step(self, accepted: int, *, hit: bool) -> None:
        """A step of one of its sessions is committed."""
        self.steps += 1
        self.accepted += accepted
        self.hits += hit

    def round_trip(self, seconds: float) -> None:
        """Note that the first grow after a commit came so many seconds after the commit."""
        self.round_trips += 1
        self.round_trip_s += seconds


class Entry(NamedTuple):
    """One session in the record of who drafts for it."""

    record: DrafterRecord
    movable: bool
    """True if its caller asked for no kind of drafter."""

    def begin(self) -> None:
        """Count the session."""
        self.record.begin(movable=self.movable)

    def end(self) -> None:
        """Count it no more."""
        self.record.end(movable=self.movable)


class Recently:
    """Looks at the records now and then, and knows what drafters brought lately. Pure: time is an argument."""

    def __init__(self) -> None:
        self._seen: dict[RecordKey, DrafterSums] = {}
        """The sums of each record at the latest look."""
        self._lately: dict[RecordKey, DrafterSums] = {}
        self._at = 0.0

    def look(self, records: Mapping[RecordKey, DrafterRecord], now: float) -> Mapping[RecordKey, DrafterSums]:
        """What every drafter brought lately; those forgotten and without sessions are left out."""
        share = 0.5 ** ((now - self._at) / HALF_LIFE_S)
        self._at = now
        sums = {key: record.sums for key, record in records.items()}
        self._lately = {
            key: self._lately.get(key, NOTHING).followed_by(self._seen.get(key, NOTHING), lately, share)
            for key, lately in sums.items()
        }
        self._seen = sums
        return {
            key: lately for key, lately in self._lately.items() if lately.steps >= FORGOTTEN or records[key].sessions
        }
