"""What is known of steps with drafters and of steps without, each with its standard error.

Tokens of a step with drafters are counted in all of them. What a step takes with drafters and without is compared in trials, each of
which gives one number; how far those lie apart says how sure their mean is, whatever disturbs steps, and for however long.
"""

from __future__ import annotations

import math
from typing import Final

FORGETTING: Final = 0.995
"""Weight that a step has left after the next one."""
UNLIKELY: Final = 0.001
"""Steps in a row of which no node was accepted begin the count anew, if so many were as unlikely as that."""
LONGER: Final = 2
"""So many times as many as there ever were before a node was accepted again: texts differ, and one tells little of the next."""
FADING: Final = 0.95
"""Weight that a trial has left after the next one."""
LEAST_ERROR: Final = 0.01
"""Standard error of a trial at least."""
SURPRISE: Final = 3.0
"""A trial that is so many standard errors from what was known begins the mean anew."""
ENOUGH: Final = 4.0
"""Trials before which none is far from the others."""


class TokenCount:
    """Tokens that a session commits in a step with drafters. Older steps fade by 0.5 % each."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._squares = self._hits = self._sessions = 0.0
        self._barren = 0
        """Steps in a row of which no node was accepted."""
        self._most_barren = 0
        """The most that there were before a node was accepted again."""

    def add(self, tokens: float, sessions: int = 1) -> None:
        """Count a step that committed so many tokens a session, in the mean of so many sessions."""
        if tokens > 1:
            self._most_barren, self._barren = max(self._most_barren, self._barren), 0
        else:
            self._barren += 1
        self._weight = FORGETTING * self._weight + 1
        self._tokens = FORGETTING * self._tokens + tokens
        self._squares = FORGETTING * self._squares + tokens**2
        self._hits = FORGETTING * self._hits + (tokens > 1)
        self._sessions = FORGETTING * self._sessions + sessions
        unlikely = self._barren * self._hits > -math.log(UNLIKELY) * self._weight
        if unlikely and self._barren > LONGER * self._most_barren:
            self._weight = self._tokens = self._squares = float(self._barren)
            self._hits, self._sessions = 0.0, float(self._barren * sessions)

    def doubt(self) -> None:
        """Give what was counted long ago half of its weight."""
        self._weight, self._tokens = self._weight / 2, self._tokens / 2
        self._squares, self._hits, self._sessions = self._squares / 2, self._hits / 2, self._sessions / 2

    @property
    def steps(self) -> float:
        """Steps that were counted, as far as they are not forgotten."""
        return self._weight

    @property
    def mean(self) -> float:
        """The mean; 1 before the first step."""
        return (self._tokens + 0.5) / (self._weight + 0.5)

    @property
    def error(self) -> float:
        """Standard error of the mean, as a share of it. In any session there might have been one node more than there was."""
        mean = self.mean
        variance = max(0.0, self._squares / max(self._weight, 1.0) - mean**2)
        return math.hypot(math.sqrt(variance / (self._weight + 1.0)), 1.0 / (self._sessions + 1.0)) / mean


class Stretch:
    """log(seconds of a step while drafters work / while they rest), in the mean of trials; older ones fade by 5 % each."""

    def __init__(self) -> None:
        self._weight = self.mean = self._squares = self._assumed = 0.0

    @property
    def known(self) -> bool:
        """False before the first trial."""
        return self._weight > 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean; infinite before the first trial."""
        return math.sqrt(self._variance / self._weight) if self.known else math.inf

    def add(self, stretch: float, variance: float) -> None:
        """Learn from a trial. `variance`: what its steps say of it; trials themselves say more once there are some."""
        variance = max(variance, LEAST_ERROR**2)
        if self._weight > ENOUGH and abs(stretch - self.mean) > SURPRISE * math.sqrt(
            max(self._variance, variance) + self.error**2
        ):
            self._weight = self._squares = 0.0
        self._assumed = variance
        self._weight = FADING * self._weight + 1
        apart = stretch - self.mean if self._weight > 1.0 else 0.0
        self.mean = self.mean + apart / self._weight if self._weight > 1.0 else stretch
        self._squares = FADING * self._squares + apart * (stretch - self.mean)

    @property
    def _variance(self) -> float:
        """Variance of a trial: of the first one what its steps say, then more and more what trials say."""
        return max(LEAST_ERROR**2, (2 * self._assumed + self._squares) / (1 + self._weight))

    def copy(self) -> Stretch:
        """Another one that knows as much."""
        other = Stretch()
        other._weight, other.mean = self._weight, self.mean
        other._squares, other._assumed = self._squares, self._assumed
        return other
