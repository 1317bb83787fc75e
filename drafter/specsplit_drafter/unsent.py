"""What one session's verifier has not been told yet.

Behind an open, a commit or a plan a verifier is told of the session in `MAX_GROWS` grows at most, however fast the drafter is and however
long the step takes: 24 of them leave as they are made, and each further one adds at least half of what these told.

Worked example: 24 grows of 10 nodes each tell of 240. The next one waits for 120 more, and the one behind it for another 180.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from specsplit.speculation import Grow

AS_MADE: Final = 24
"""Grows that leave as they are made. Of expansions that take no time a verifier is told 20 times a step."""


class UnsentGrows:
    """Grows on their way out: one for every commit that came meanwhile, and those since."""

    def __init__(self) -> None:
        self._sealed: list[Grow] = []
        """Made before the latest commit, one for each commit."""
        self._open: list[Grow] = []
        """Made since."""
        self._told_resting = False
        self._grows = 0
        """Told since the verifier asked for some."""
        self._told = 0
        """Nodes and new edges in these."""
        self._kept = 0
        """Nodes and new edges that are not told."""

    def add(self, grow: Grow) -> None:
        """Keep what was grown until `take`."""
        self._open.append(grow)
        self._kept += len(grow.ids) + len(grow.rescored)

    def stir(self) -> None:
        """Forget that the verifier was told of rest: there has been work since."""
        self._told_resting = False

    def asked(self) -> None:
        """Answer the verifier, which has said something, as soon as there is something to say."""
        self._told_resting = False
        self._grows = self._told = 0

    def seal(self) -> None:
        """Begin a new grow, before a commit is applied: the mirror must be able to tell what was made before it."""
        if self._open:
            self._sealed.append(Grow.merge(self._open))
            self._open = []
            self._kept = 0
        self.asked()

    def take(self, commits: int, resting: bool, *, whole: bool) -> list[Grow]:
        """Take what is to be told now, in order: at most one grow per commit, and rest once. whole: only when nothing more will come."""
        told, self._sealed = self._sealed, []
        waits = not resting and (whole or self._too_little)
        if waits or (not self._open and (self._told_resting or not resting)):
            return told
        grow = Grow.merge(self._open) if self._open else Grow(commits)
        self._open = []
        self._told_resting = resting
        self._grows += 1
        self._told, self._kept = self._told + self._kept, 0
        return [*told, replace(grow, resting=True) if resting else grow]

    @property
    def _too_little(self) -> bool:
        """True if what is kept is to become more first, next to what was told."""
        return self._grows >= AS_MADE and 2 * self._kept < self._told
