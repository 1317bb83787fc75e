"""How many levels one expansion draws: as many as are cheaper so than each by itself, and as an answer to a commit can wait for."""

from __future__ import annotations

from typing import Final

CHEAPER: Final = 0.8
"""A level more is drawn in the same go if it costs less than this of an expansion of its own: what the device chooses may not be wanted."""
WAIT_SHARE: Final = 0.25
"""Share of a step's time that an expansion of several levels may take: a commit waits for half of it in the mean."""
TRIAL_INTERVAL: Final = 256
"""Expansions after which the other way is tried once: two levels where one is drawn, and one where several are."""
FIRST_TRIAL: Final = 16
"""Expansions after which two levels are tried for the first time."""
_FORGETTING: Final = 0.9


class LevelCost:
    """What a level more costs in one expansion, learnt from those that drew several."""

    def __init__(self) -> None:
        self._seconds = self._levels = 0.0
        """Time that further levels took, and how many of them brought nodes, older ones counted less."""
        self._until_trial = FIRST_TRIAL
        """Expansions before the other way is tried again."""
        self._until_retrial = 1
        """Expansions before it is tried again after a trial of which nothing was learnt."""

    @property
    def level_s(self) -> float | None:
        """Time of one level more that brings nodes; None if none was drawn."""
        return self._seconds / max(self._levels, 1e-3) if self._seconds else None

    def observe(self, further_s: float, useful_levels: int) -> None:
        """Learn how long all levels of an expansion but the first took together, and how many of them brought nodes."""
        self._until_retrial = 1
        self._seconds = _FORGETTING * self._seconds + max(further_s, 1e-9)
        self._levels = _FORGETTING * self._levels + useful_levels

    def skip(self) -> None:
        """Learn nothing of the latest expansion, of several levels. If it was a trial, there is another soon, and then ever later."""
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
