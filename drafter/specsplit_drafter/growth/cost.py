"""The cost of an expansion on this device, learnt from expansions, and the width that it calls for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from specsplit.first_runs import FirstRuns
from specsplit.records import Eager, GraphStatistics
from specsplit.tree import Scores
from specsplit_drafter.drafts.proposer import FrontierPart
from specsplit_drafter.growth.level_cost import LevelCost

FORGETTING: Final = 0.98
MESSAGE_SHARE: Final = 0.05
"""Share of a step's time for which grows may wait to be sent together."""
MOST_PER_MESSAGE: Final = 16
"""Expansions whose nodes one message may hold."""


class LinearCost(NamedTuple):
    """Seconds of an expansion as a linear function of its rows: the nodes that it expands and the committed tokens that it reads."""

    base_s: float
    row_s: float

    def seconds(self, rows: int) -> float:
        """Compute the expected seconds of an expansion of so many rows."""
        return self.base_s + self.row_s * rows


FREE: Final = LinearCost(0.0, 0.0)


class ExpansionCost:
    """The latest expansion, and a line through recent ones of one level by least squares (each newer one fades the others by 0.98)."""

    def __init__(self) -> None:
        self.frontier: Sequence[FrontierPart] = ()
        """Nodes of the latest expansion, by session."""
        self.rows = 0
        """Rows of the latest expansion, those of further levels not counted."""
        self.levels = 1
        """Levels that the latest expansion drew."""
        self.useful_levels = 0
        """Levels below the first that brought nodes."""
        self.level_cost = LevelCost()
        self._first_runs = FirstRuns()
        """Which expansions are the first of their rows and levels."""
        self._sums = np.zeros(5)
        """Sums of weight, rows, seconds, rows squared and rows times seconds."""

    def observe(self, seconds: float) -> None:
        """Learn from the seconds that the latest expansion took."""
        rows = self.rows
        if self.levels > 1:
            self.level_cost.observe(seconds - self.line.seconds(rows), self.useful_levels)
            return
        self._sums *= FORGETTING
        self._sums += (1, rows, seconds, rows * rows, rows * seconds)

    def observe_run(self, seconds: float, before: GraphStatistics, now: GraphStatistics) -> None:
        """Learn from the seconds of the latest expansion, unless it was the first of its size, or captured a shape, or will the next time.

        Such expansions are few, and their times say nothing of others. A descent of a shape that will have no graph (Eager.FULL) counts.
        before, now: the graph statistics of the proposer.
        """
        met = now.eager.get(Eager.FIRST, 0) != before.eager.get(Eager.FIRST, 0)
        if not (self._first_runs.is_first(self.rows, self.levels) or met or now.captured != before.captured):
            self.observe(seconds)
        elif self.levels > 1:
            self.level_cost.skip()

    @property
    def mean_s(self) -> float | None:
        """The mean time that recent ones of one level took; None if there was none."""
        weight, _, seconds, _, _ = self._sums.tolist()
        return seconds / weight if weight else None

    @property
    def line(self) -> LinearCost:
        """The line so far. While all expansions were equally wide, the cost of a row is taken to be 0, so that a wider one is tried."""
        weight, rows, seconds, squares, products = self._sums.tolist()
        if weight == 0:
            return FREE
        spread = squares - rows * rows / weight
        row_s = (products - rows * seconds / weight) / spread if spread > 0.5 * weight else 0.0
        row_s = min(max(row_s, 0.0), seconds / max(rows, 1.0))  # so that the base is not below 0 either
        return LinearCost((seconds - row_s * rows) / weight, row_s)


def expansions_per_message(step_s: float, mean_s: float | None) -> int:
    """Choose how many expansions are sent in one message, so that none waits for more than a twentieth of a step; 16 at most.

    Worked example: for steps of 20 ms a drafter whose expansions take 0.2 ms sends 5 at once, one of 2 ms each by itself.
    """
    if mean_s is None:
        return 1
    return max(1, min(MOST_PER_MESSAGE, int(MESSAGE_SHARE * step_s / max(mean_s, 1e-6))))


def best_width(survivals: Scores, line: LinearCost) -> int:
    """Choose how many of these nodes, likeliest first, to expand at once so that the most survival is expanded per second.

    Worked example: survivals 0.9, 0.5 and 0.1 where an expansion costs 1 ms and 0.1 ms for each node. One node gives 0.9 / 1.1 = 0.82
    per ms, two 1.4 / 1.2 = 1.17, three 1.5 / 1.3 = 1.15. So two are expanded now, and the third with what comes next.
    """
    seconds = line.base_s + line.row_s * np.arange(1, len(survivals) + 1)
    if line.row_s == 0.0:
        return len(survivals)
    return int((survivals.cumsum() / seconds).argmax()) + 1
