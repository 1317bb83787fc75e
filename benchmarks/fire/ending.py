"""Being told to end before the time is over: by SIGTERM, SIGHUP or Ctrl-C."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
POLL_S: Final = 0.1
_HEARD: Final = b"told to end: what was found until now is judged and written; Ctrl-C (once more) ends this at once\n"


class Ending:
    """Whether a run was told to end. The time of a part at work is over then; one that has yet to start does not."""

    def __init__(self) -> None:
        self.by = ""
        """The name of the signal that told it first; empty: none has."""
        self.at = math.inf
        """When that was, by time.monotonic()."""
        self._starting = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Inside it signals tell the run to end; one that is ignored, as under nohup, stays so. On the main thread."""
        before = {each: handler for each in SIGNALS if (handler := signal.getsignal(each)) is not signal.SIG_IGN}
        for each in before:
            signal.signal(each, self._hear)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Inside it nothing is found yet: SystemExit is raised where the run is told to end, or at once if it has been."""
        self._starting = True
        try:
            self.leave()
            yield
        finally:
            self._starting = False

    def tell(self, by: str) -> None:
        """End the time of the part that is at work; `by` is the name of a signal."""
        self.by, self.at = by, time.monotonic()

    def sooner(self, until: float) -> float:
        """`until`, or when the run was told to end if that was before, by time.monotonic()."""
        return min(until, self.at)

    async def wait(self, seconds: float) -> None:
        """Return after so many seconds, or once the run is told to end."""
        until = time.monotonic() + seconds
        while (left_s := self.sooner(until) - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, POLL_S))

    def leave(self) -> None:
        """Raise SystemExit, with 128 and the number of the signal as status, if the run was told to end."""
        if self.by:
            raise SystemExit(128 + signal.Signals[self.by])

    def _hear(self, number: int, frame: object) -> None:
        """Take note, and nothing else at work: what an exception would interrupt there may be gRPC, which it breaks."""
        if self.by:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return  # a second one of the others must not cut short what the first one began
        self.tell(signal.Signals(number).name)
        if self._starting:
            self.leave()
        with suppress(OSError):  # the terminal may be what has gone
            os.write(2, _HEARD)
