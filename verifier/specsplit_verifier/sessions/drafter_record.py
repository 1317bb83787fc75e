"""What each drafter has brought, and what it brought lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HALF_LIFE_S = 15.0
"""After so long a step counts half of what it did."""
FORGOTTEN = 0.01
"""Steps: who has been seen less than this, and drafts for nobody, is not told of."""


RecordKey = tuple[str, bool]
"""Address of a drafter, and whether sessions are sampled: some drafters bring much to greedy text and next to nothing to sampled text."""


@dataclass(slots=True)
class DrafterRecord:
    """Sums over all that one drafter has done for greedy, or for sampled, sessions of a verifier.

    They only go up, but for the first two.
    """

    sessions: int = 0
    """Sessions that the drafter drafts for now."""
    movable: int = 0
    """Sessions among these whose callers asked for no kind of drafter."""
    steps: int = 0
    """Session steps that ended with a commit to it."""
    accepted: int = 0
    """Nodes of the drafter accepted in these steps."""
    hits: int = 0
    held_s: float = 0.0
    """For how long sessions were held back for it."""
    round_trips: int = 0
    round_trip_s: float = 0.0
    """Seconds that the round trips took, the sum."""

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


@dataclass(frozen=True, slots=True)
class Lately:
    """Sums of a DrafterRecord in which what is older counts less and less."""

    steps: float = 0.0
    accepted: float = 0.0
    hits: float = 0.0
    held_s: float = 0.0
    round_trips: float = 0.0
    round_trip_s: float = 0.0

    @classmethod
    def of(cls, record: DrafterRecord) -> Lately:
        """The sums as they stand."""
        return cls(record.steps, record.accepted, record.hits, record.held_s, record.round_trips, record.round_trip_s)

    def followed_by(self, before: Lately, now: Lately, share: float) -> Lately:
        """`share` of these sums, and what came between two looks at the record, or since it was begun anew."""
        if now.steps < before.steps:
            before = NOTHING
        return Lately(
            share * self.steps + now.steps - before.steps,
            share * self.accepted + now.accepted - before.accepted,
            share * self.hits + now.hits - before.hits,
            share * self.held_s + now.held_s - before.held_s,
            share * self.round_trips + now.round_trips - before.round_trips,
            share * self.round_trip_s + now.round_trip_s - before.round_trip_s,
        )


NOTHING = Lately()


class Recently:
    """Looks at the records now and then, and knows what drafters brought lately. Pure: time is an argument."""

    def __init__(self) -> None:
        self._seen: dict[RecordKey, Lately] = {}
        """The sums of each record at the latest look."""
        self._lately: dict[RecordKey, Lately] = {}
        self._at = 0.0

    def look(self, records: Mapping[RecordKey, DrafterRecord], now: float) -> Mapping[RecordKey, Lately]:
        """What every drafter brought lately; those forgotten and without sessions are left out."""
        share = 0.5 ** ((now - self._at) / HALF_LIFE_S)
        self._at = now
        sums = {key: Lately.of(record) for key, record in records.items()}
        self._lately = {
            key: self._lately.get(key, NOTHING).followed_by(self._seen.get(key, NOTHING), lately, share)
            for key, lately in sums.items()
        }
        self._seen = sums
        return {
            key: lately for key, lately in self._lately.items() if lately.steps >= FORGOTTEN or records[key].sessions
        }
