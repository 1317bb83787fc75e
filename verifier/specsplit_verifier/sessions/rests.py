"""Rests of whoever drafts, and the probes that end them: what brought nothing is tried again, and more and more seldom."""

from __future__ import annotations

from typing import Final

RESTS: Final = 64, 1024
"""Steps of a rest, the first time and at most: every rest that a probe does not end is twice as long as the one before."""
PROBE: Final = 8
"""Steps of a probe."""


class Rests:
    """Who is at work, rests, or is tried. Steps are those of sessions."""

    def __init__(self) -> None:
        self.resting = False
        self._left = 0
        """Steps of the rest, or of the probe, that are still to come."""
        self._length = RESTS[0]

    @property
    def probing(self) -> bool:
        """True in a probe."""
        return self._left > 0 and not self.resting

    def begin(self) -> None:
        """Begin a rest."""
        self.resting, self._left = True, self._length

    def probe(self) -> None:
        """End a rest by a probe."""
        self.resting, self._left = False, PROBE

    def end(self) -> None:
        """Be at work: the next rest is as short as the first."""
        self.resting, self._left, self._length = False, 0, RESTS[0]

    def step(self) -> bool:
        """Count a step of a rest, behind which a probe begins, or of a probe -> whether a probe is over with it."""
        self._left -= 1
        if self._left > 0:
            return False
        if self.resting:
            self.probe()
            self._length = min(2 * self._length, RESTS[1])
            return False
        return True
