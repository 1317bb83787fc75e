"""What the coordinator sees of every request, for whoever looks: those that are on their way, those that ended last, and sums. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count

from specsplit.sessions import Finished, Tokens
from specsplit.values import SpeculationStatistics
from specsplit_coordinator.registry import Seat

ENDED_KEPT = 8

QUEUED, RUNNING = "queued", "running"
"""Where a request may be that has not ended."""


@dataclass(eq=False, slots=True)
class Entry:
    """One request."""

    number: int
    """Unique in this process; what callers name their requests is not."""
    request_id: str
    asked_at: float
    """Seconds of the coordinator's clock; and so are the others."""
    state: str = QUEUED
    """QUEUED or RUNNING; once it has ended, the finish reason or the gRPC status in small letters."""
    verifier: Seat | None = None
    drafter: str = ""
    """Member id of the drafter chosen at the start; empty: none."""
    prompt_tokens: int = 0
    tokens: int = 0
    """Received from the verifier."""
    speculation: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    began_at: float | None = None
    """When it got a place on a verifier."""
    ended_at: float | None = None

    @property
    def running(self) -> bool:
        """True while a verifier decodes it."""
        return self.state == RUNNING


class Ledger:
    """Every request that is on its way, in order of arrival."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, Entry] = {}
        self._ended: deque[Entry] = deque(maxlen=ENDED_KEPT)
        self.asked = 0
        """Requests since the start; and so are the next."""
        self.tokens = 0
        """Generated."""
        self.steps = 0
        """Of all sessions: a step of a batch of three counts three times."""
        self.accepted = 0
        """Drafts that the target accepted."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Those on their way, then those that ended last, latest first."""
        return (*self._open.values(), *self._ended)

    def open(self, request_id: str, now: float) -> Entry:
        """A request came."""
        entry = Entry(next(self._numbers), request_id, now)
        self._open[entry.number] = entry
        self.asked += 1
        return entry

    def placed(self, entry: Entry, verifier: Seat, drafter: Seat | None, now: float) -> None:
        """It runs from now on."""
        entry.state, entry.verifier, entry.began_at = RUNNING, verifier, now
        entry.drafter = "" if drafter is None else drafter.member_id

    def received(self, entry: Entry, event: Tokens | Finished) -> None:
        """A verifier's event."""
        if isinstance(event, Tokens):
            entry.tokens += len(event.tokens)
            self.tokens += len(event.tokens)
        self.steps += event.speculation.steps - entry.speculation.steps
        self.accepted += event.speculation.accepted - entry.speculation.accepted
        entry.speculation = event.speculation

    def close(self, entry: Entry, state: str, now: float) -> None:
        """It is over, and that is how."""
        entry.state, entry.ended_at = state, now
        del self._open[entry.number]
        self._ended.appendleft(entry)

    def find(self, number: int) -> Entry | None:
        """The one with this number, if it is still known."""
        return next((entry for entry in self.entries if entry.number == number), None)
