"""How requests ended, counted, and how long no caller got anything."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from benchmarks.fire.findings import Findings


class Outcome(StrEnum):
    """How a request ended."""

    SAME = "exactly its text"
    CANCELLED = "cancelled by its caller"
    LATE = "DEADLINE_EXCEEDED, by its own deadline"
    UNAVAILABLE = "UNAVAILABLE"
    EXHAUSTED = "RESOURCE_EXHAUSTED"
    DIFFERENT = "different texts"
    HUNG = "hangs"
    FAILED = "requests that failed"
    """With another status, or none."""


STANDSTILL_S: Final = 60.0
"""When nothing has come for so long, requests stand still, whatever was done to the processes."""
WRONG: Final = (Outcome.DIFFERENT, Outcome.HUNG, Outcome.FAILED)
"""What must not be, whatever is done to the processes."""


@dataclass
class Tally:
    """Requests by outcome."""

    must_not_be: Sequence[Outcome] = WRONG
    counts: Counter[Outcome] = field(default_factory=Counter[Outcome])
    tokens: int = 0
    resumed: int = 0
    """Requests that were sent more than once, since an answer broke."""
    wrong: list[tuple[Outcome, str]] = field(default_factory=list[tuple[Outcome, str]])
    """What must not be, with a sentence each."""

    def add(self, outcome: Outcome, tokens: int, sent: int, why: str) -> None:
        """One request that is over, after it was sent so many times."""
        self.counts[outcome] += 1
        self.tokens += tokens
        self.resumed += sent > 1
        if outcome in self.must_not_be:
            self.wrong.append((outcome, why))

    @property
    def told(self) -> str:
        """The outcomes in one line."""
        return ", ".join(f"{self.counts[each]} {each}" for each in Outcome if self.counts[each]) or "none is over"

    def report(self, findings: Findings) -> None:
        """Write the rows of requests. That there were none that ended with their text is a fault too."""
        findings.add("requests", self.counts.total())
        for outcome in (each for each in Outcome if each not in self.must_not_be):
            findings.add(f"of these {outcome}", self.counts[outcome])
        findings.add("requests sent again for the rest, since an answer broke", self.resumed)
        findings.add("tokens", self.tokens)
        for outcome in self.must_not_be:
            findings.must_be_none(outcome, [why for found, why in self.wrong if found is outcome])
        if not self.counts[Outcome.SAME]:
            findings.faults.append(f"{findings.part}: no request ended with its text")


@dataclass
class Stillness:
    """How long nothing came to any caller, from when it is made. An outage that each is told of with UNAVAILABLE shows nowhere else."""

    longest_s: float = 0.0
    """Between two messages to any caller, between the first and the beginning, or between the last and the end."""
    _since: float = field(default_factory=time.monotonic)

    def mark(self) -> None:
        """Something has come, or the load is over."""
        now = time.monotonic()
        self.longest_s, self._since = max(self.longest_s, now - self._since), now

    def report(self, findings: Findings) -> None:
        """Write a row with the longest; that it was a standstill is a fault."""
        told = f"{self.longest_s:.1f} s"
        findings.add("longest time in which nothing came to any caller", told, f"< {STANDSTILL_S:g} s")
        if self.longest_s >= STANDSTILL_S:
            findings.faults.append(f"{findings.part}: nothing came to any caller for {told}")
