"""The thread that steps run on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from specsplit_verifier.events import Began, Ran
from specsplit_verifier.step import StepInput, StepOutput


class ModelThread:
    """Runs one step after the other. A step that never returns does not keep the process from ending."""

    def __init__(self, run: Callable[[StepInput], StepOutput], tell: Callable[[Began | Ran], None]) -> None:
        """`tell` hears of every step that begins, and that is over, on that thread."""
        self._run = run
        self._tell = tell
        self._steps: queue.SimpleQueue[StepInput | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def submit(self, step: StepInput) -> None:
        """Run a step."""
        self._steps.put(step)

    def close(self) -> None:
        """End the thread once it has nothing to do."""
        self._steps.put(None)

    def _work(self) -> None:
        while (step := self._steps.get()) is not None:
            self._tell(Began())
            try:
                ran = Ran(self._run(step))
            except Exception as error:  # noqa: BLE001 (the edge of a thread: whoever waits for the step gets it)
                ran = Ran(error)
            self._tell(ran)
