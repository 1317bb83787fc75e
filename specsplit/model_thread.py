"""One thread for all work on a model, from loading on.

torch shares its operations out over a pool of threads, and with GNU's OpenMP each thread that calls it has a pool of its own. Work on two
threads (loading on one, stepping on another) has two pools, so more threads than cores, and OpenMP then lets its workers sleep behind every
operation, to be woken by the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, Final, TypeVar

R = TypeVar("R")


class ModelThread:
    """Does work in order. It ends with the process, which does not wait for it: what hangs there must not keep it."""

    def __init__(self, name: str) -> None:
        self._work: Final[SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]] = SimpleQueue()
        self._latest: Future[Any] = Future()
        self._latest.set_result(None)
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Have the work done behind all that was submitted before -> its result, or what it raised."""
        done: Future[R] = Future()
        self._latest = done
        self._work.put((done, work))
        return done

    def idle(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was submitted is done, for so long at most -> whether it is."""
        return not wait([self._latest], timeout_s).not_done

    async def load(self, work: Callable[[], R]) -> R:
        """Have a model loaded, and wait for that on the event loop. If it raises, or nobody waits any more, the thread ends behind it."""
        try:
            return await asyncio.wrap_future(self.submit(work))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the thread behind all that was submitted."""
        self._work.put(None)

    def _run(self) -> None:
        while (next_work := self._work.get()) is not None:
            done, work = next_work
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 (whoever waits for it gets it)
                done.set_exception(error)
            del next_work, done, work  # nothing of it is to live on while the thread waits
