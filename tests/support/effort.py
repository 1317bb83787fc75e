"""How much work something is, counted in lines of Python that run, so that the machine's speed does not matter."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Effort:
    """Lines that ran while it was counted; loops of a comprehension count, those in C do not."""

    def __init__(self) -> None:
        self.lines = 0

    @contextmanager
    def counted(self) -> Generator[None]:
        """Count what this thread runs inside."""
        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()  # whose callbacks run lines too, now and then
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.lines += event == "line"
        return self._trace
