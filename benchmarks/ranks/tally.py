"""What a soak came to. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from benchmarks.report import Row
from benchmarks.spread import percentile

NEAR_PARK_S = 0.02


class Outcome(StrEnum):
    """How a request ended."""

    SAME = "same"
    """It ended with exactly its text."""
    DIFFERENT = "different"
    LOST = "lost"
    """It ended with an error."""
    HUNG = "hung"
    """It did not end in the time that it was given."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request that is over."""

    sent: float
    """Seconds since 1970."""
    ended: float
    first_token_s: float | None
    """From when it was sent; None: there was none."""
    outcome: Outcome
    tokens: int
    refused: int = 0
    """How often it was told that there is no verifier, before it had a place, and was sent again."""
    why: str = ""
    """What was wrong, if anything was."""


@dataclass(slots=True)
class Killed:
    """A rank that was killed, and how its group fared."""

    at: float
    """Seconds since 1970."""
    rank: int
    running: int
    """Requests that were there."""
    again: bool
    """True if the rank was killed while the group was starting."""
    whole_at: float | None = None
    """When all ranks were there again; None: not before the end."""


@dataclass
class Tally:
    """What became of the requests, ranks and waves of one soak."""

    answered: list[Answered] = field(default_factory=list[Answered])
    killed: list[Killed] = field(default_factory=list[Killed])
    parks: Sequence[float] = ()
    """The moments at which a wave ended."""
    waves: int = 0
    failovers: float = 0.0
    met_end: int = 0
    """Requests sent within NEAR_PARK_S of when the wave was expected to end."""
    left: str = ""
    """What was still there when all was over and should not have been; empty: nothing."""

    def count(self, outcome: Outcome) -> int:
        """Requests that ended so."""
        return sum(each.outcome is outcome for each in self.answered)

    @property
    def sound(self) -> bool:
        """True if nothing hung, nothing was lost, no text was different and nothing was left over."""
        return self.count(Outcome.SAME) == len(self.answered) > 0 and not self.left

    @property
    def faults(self) -> list[str]:
        """A sentence on each fault."""
        wrong = [
            f"{each.outcome} after {each.ended - each.sent:.1f} s: {each.why}" for each in self.answered if each.why
        ]
        return [*wrong, *([self.left] if self.left else [])]

    @property
    def rows(self) -> list[Row]:
        undisturbed = [each.first_token_s or 0.0 for each in self.answered if not self._disturbed(each)]
        all_first = [each.first_token_s or 0.0 for each in self.answered]
        near = [distance for each in self.answered if abs(distance := self.from_park(each.sent)) <= NEAR_PARK_S]
        facts: dict[str, object] = {
            "requests": len(self.answered),
            "tokens": sum(each.tokens for each in self.answered),
            "kills": len(self.killed),
            "of these while the group was starting": sum(each.again for each in self.killed),
            "of these with requests running": sum(each.running > 0 for each in self.killed),
            "sessions that went on elsewhere, or with the group come back": int(self.failovers),
            "told that no verifier is there, before they had a place, and sent again": sum(
                each.refused > 0 for each in self.answered
            ),
            "waves": self.waves,
            "waves that ended": len(self.parks),
            "requests sent within 20 ms of the end of a wave": len(near),
            "of these before it": sum(distance < 0 for distance in near),
            "requests sent within 20 ms of when the wave was expected to end": self.met_end,
            "time to the first token away from kills, p50, ms": percentile(undisturbed, 50) * 1e3,
            "time to the first token away from kills, p99, ms": percentile(undisturbed, 99) * 1e3,
            "time to the first token away from kills, longest, ms": max(undisturbed, default=0.0) * 1e3,
            "time to the first token, longest, s": max(all_first, default=0.0),
            "hangs": self.count(Outcome.HUNG),
            "lost requests": self.count(Outcome.LOST),
            "different texts": self.count(Outcome.DIFFERENT),
        }
        return [{"what": what, "count": count} for what, count in facts.items()]

    def from_park(self, moment: float) -> float:
        """Seconds from the nearest end of a wave to a moment, negative if that was before it."""
        after = bisect_left(self.parks, moment)
        around = self.parks[max(0, after - 1) : after + 1]
        return min((moment - park for park in around), key=abs, default=float("inf"))

    def _disturbed(self, each: Answered) -> bool:
        return any(kill.at < each.ended and each.sent < (kill.whole_at or float("inf")) for kill in self.killed)
