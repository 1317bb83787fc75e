"""A rank that has nothing to do takes part in the turns of its group all the same. To be replaced by waves, which park a group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from specsplit.errors import RankLost
from specsplit_verifier.step import StepInput, StepOutput

BETWEEN_S: Final = 0.001
"""Between two idle turns the engine's own step gets in."""


class IdleTurns:
    """Runs idle steps from `start` on, on a thread of its own, whenever no other step runs."""

    def __init__(self, run: Callable[[StepInput], StepOutput]) -> None:
        self._run = run
        self._one_at_a_time = threading.Lock()

    def run(self, step: StepInput) -> StepOutput:
        """Run a step of the engine."""
        with self._one_at_a_time:
            return self._run(step)

    def start(self, lost: Callable[[str], None]) -> None:
        """From now on; `lost` is told if a rank of the group is, and then that is all."""
        threading.Thread(target=self._work, args=(lost,), name="idle turns", daemon=True).start()

    def _work(self, lost: Callable[[str], None]) -> None:
        try:
            while True:
                self.run(StepInput())
                time.sleep(BETWEEN_S)
        except RankLost as error:
            lost(str(error))
