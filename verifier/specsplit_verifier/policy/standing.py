"""How a session gets on with its drafter: what becomes of its nodes, and whether it should draft at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specsplit_verifier.policy.acceptance import SessionAcceptance

IDLE: Final = 32
"""After so many steps in a row that took no node the drafter is told to rest."""
RESTS: Final = 64, 1024
"""Steps that it rests for, the first time and at most: every rest that a probe does not end is twice as long as the one before."""
PROBE: Final = 8
"""Steps of a probe."""
PROBED: Final = 4
"""Nodes that a step of a probe takes at least, if they are there: without nodes nothing can be learnt."""


class Standing:
    """One session at one drafter. Steps are those of the session."""

    def __init__(self, address: str, acceptance: SessionAcceptance) -> None:
        self.address = address
        self.acceptance = acceptance
        self.resting = False
        """True if the drafter should draft nothing now."""
        self._idle = 0
        self._left = 0
        """Steps of the rest, or of the probe, that are still to come."""
        self._rest = RESTS[0]

    @property
    def least(self) -> int:
        """Nodes that the next step takes whether they pay or not, if they are there."""
        return PROBED if self._left > 0 and not self.resting else 0

    def stepped(self, survivals: Sequence[float], accepted: Sequence[int], *, drafter_ready: bool = True) -> None:
        """The session has made a step over nodes with these survivals; those at the indices `accepted` were accepted.

        A step for which a drafter that is at work had said nothing yet (`drafter_ready`), since it still reads or is late, tells
        nothing of its worth.
        """
        if not (self.resting or drafter_ready):
            return
        if len(survivals):
            self.acceptance.observe(survivals, accepted)
        if self._left > 0:
            self._left -= 1
            if self._left == 0:
                self._switch()
        elif len(survivals):
            self._idle, self._rest = 0, RESTS[0]
        else:
            self._idle += 1
            if self._idle >= IDLE:
                self.resting, self._left = True, self._rest

    def _switch(self) -> None:
        """A rest is over and a probe begins, or that is over too: a few steps without nodes, and the drafter rests again."""
        if self.resting:
            self.resting, self._left = False, PROBE
            self._rest = min(2 * self._rest, RESTS[1])
        else:
            self._idle = IDLE - PROBE
