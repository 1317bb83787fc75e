"""The number of levels that one expansion draws: as long as that is cheaper than further expansions, and a commit can wait for it."""

from __future__ import annotations

from typing import Final

CHEAPER: Final = 0.8
"""A further level costs less than this share of an expansion, or it is not drawn: the nodes that the device chooses may not be used."""
WAIT_SHARE: Final = 0.25
"""Share of a step's time that an expansion of several levels may take: a commit waits for half of it in the mean."""
TRIAL_INTERVAL: Final = 256
"""Expansions between two trials of the other way: two levels where one is drawn, and one where several are."""
FIRST_TRIAL: Final = 16
"""Expansions after which two levels are tried for the first time."""
_FORGETTING: Final = 0.9


class LevelCost:
    """The cost of a further level in one expansion, learnt from those that drew several."""

    def __init__(self) -> None:
        self._seconds = self._levels = 0.0
        """Sums of the time of further levels, and of those that brought nodes; older ones fade."""
        self._until_trial = FIRST_TRIAL
        """Expansions until the next trial."""
        self._until_retrial = 1
        """Expansions until the next trial after one that was skipped."""

    @property
    def level_s(self) -> float | None:
        """Time of one further level that brings nodes; None if none was drawn."""
        return self._seconds / max(self._levels, 1e-3) if self._seconds else None

    def observe(self, further_s: float, useful_levels: int) -> None:
        """Learn from the time of all levels of an expansion but the first, and from how many of them brought nodes."""
        self._until_retrial = 1
        self._seconds = _FORGETTING * self._seconds + max(further_s, 1e-9)
        self._levels = _FORGETTING * self._levels + useful_levels

    def skip(self) -> None:
        """Learn nothing from the latest expansion, of several levels. If it was a trial, the next one comes soon, then ever later."""
        if self._until_trial == TRIAL_INTERVAL:
            self._until_trial = self._until_retrial
            self._until_retrial = min(2 * self._until_retrial, TRIAL_INTERVAL)

    def choose(self, most: int, alone_s: float, step_s: float) -> int:
        """Choose how many levels, `most` at most, to draw where an expansion of one takes `alone_s`.

        step_s: time of a step, infinite where no commit can come meanwhile.

        Worked example: expansions take 1 ms, a level more 0.2 ms, and steps 10 ms: 1 + (0.25 * 10 - 1) / 0.2 = 8 levels.
        """
        if most == 1:
            return 1
        cheap = self.level_s is not None and self.level_s < CHEAPER * alone_s
        self._until_trial -= 1
        if not self._until_trial:
            self._until_trial = TRIAL_INTERVAL
            return 1 if cheap else 2
        if self.level_s is None or not cheap:
            return 1
        return int(max(1, min(most, 1 + (WAIT_SHARE * step_s - alone_s) // self.level_s)))
