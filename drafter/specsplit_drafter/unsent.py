"""What one session's verifier has not been told yet."""

from __future__ import annotations

from dataclasses import replace

from specsplit.speculation import Grow


class UnsentGrows:
    """Grows on their way out: one for every commit that came meanwhile, and those since."""

    def __init__(self) -> None:
        self._sealed: list[Grow] = []
        """Made before the latest commit, one for each commit."""
        self._open: list[Grow] = []
        """Made since."""
        self._told_resting = False

    def add(self, grow: Grow) -> None:
        """Keep what was grown until `take`."""
        self._open.append(grow)

    def stir(self) -> None:
        """Forget that the verifier was told of rest: there has been work since."""
        self._told_resting = False

    def seal(self) -> None:
        """Begin a new grow, before a commit is applied: the mirror must be able to tell what was made before it."""
        if self._open:
            self._sealed.append(Grow.merge(self._open))
            self._open = []
        self._told_resting = False

    def take(self, commits: int, resting: bool, *, whole: bool) -> list[Grow]:
        """Take what is to be told now, in order: at most one grow per commit, and rest once. whole: only when nothing more will come."""
        told, self._sealed = self._sealed, []
        waits = whole and not resting
        if waits or (not self._open and (self._told_resting or not resting)):
            return told
        grow = Grow.merge(self._open) if self._open else Grow(commits)
        self._open = []
        self._told_resting = resting
        return [*told, replace(grow, resting=resting)]
