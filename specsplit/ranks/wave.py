"""Waves: when the ranks of a group step together, and when nobody does anything.

    parked ──StartWave(k)──> wave k: a turn after the other ──PARK_AFTER turns without work anywhere──> parked

The ranks of a group see the same numbers in every turn, so all of them park in the same one. None begins a wave by itself: the coordinator
tells all ranks of it, so whoever begins it finds the others there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

PARK_AFTER: Final = 32
"""A wave ends when no rank was unfinished for so many turns in a row."""


@dataclass(frozen=True, slots=True)
class Wave:
    """Where one rank stands. Each event gives the next value."""

    number: int = 0
    """The wave that it is in, or was in last; 0: it has been in none."""
    parked: bool = True
    """True: it takes part in no turn."""
    announced: int = 0
    """The highest wave that the coordinator has announced, for this rank to begin."""
    quiet: int = 0
    """Turns in a row in which no rank was unfinished."""
    park_after: int | None = PARK_AFTER
    """How many of them end the wave; None: it never ends."""

    def start(self, number: int) -> Wave:
        """Take in that wave `number` is to begin: at once if it is parked, else when it parks. One that it has begun already is none."""
        return replace(self, announced=max(self.announced, number))._begun()

    def end_turn(self, *, unfinished: bool) -> Wave:
        """End a turn, in which some rank was `unfinished`, or none was."""
        quiet = 0 if unfinished else self.quiet + 1
        if self.park_after is None or quiet < self.park_after:
            return replace(self, quiet=quiet)
        return replace(self, quiet=0, parked=True)._begun()

    def _begun(self) -> Wave:
        if self.parked and self.announced > self.number:
            return replace(self, number=self.announced, parked=False)
        return self


ENDLESS: Final = Wave(number=1, parked=False, park_after=None)
"""The wave of a verifier or drafter that is alone: nobody wakes it, and it is never parked."""
