"""The thread that loads a model and runs it.

torch shares its operations out over a pool of threads, and with GNU's OpenMP each thread that calls it has a pool of its own. Work on two
threads (loading on one, stepping on another) has two pools, so more threads than cores, and OpenMP then lets its workers sleep behind every
operation, to be woken by the next.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final, TypeVar

R = TypeVar("R")


class BuildingSite:
    """Keeps steps and the building of modules apart.

    transformers changes torch's default type, and functions of torch, for the whole process while it builds a model's modules, which takes
    milliseconds. So that one model can be loaded while another one steps, building waits for the steps in flight, and later ones for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps = 0
        self._building = False
        self.stepping: Final = _Stepping(self)
        """A context to compute in, beside whoever else does."""

    def begin_step(self) -> None:
        """Count a step that begins; wait first until nobody builds."""
        with self._changed:
            while self._building:
                self._changed.wait()
            self._steps += 1

    def end_step(self) -> None:
        """Count a step less, which is over."""
        with self._changed:
            self._steps -= 1
            if not self._steps:
                self._changed.notify_all()

    @contextmanager
    def building(self) -> Iterator[None]:
        """Build modules in here, alone."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._steps or self._building))
            self._building = True
        try:
            yield
        finally:
            with self._changed:
                self._building = False
                self._changed.notify_all()


class _Stepping:
    """One object for all steps, which costs less than one for each."""

    def __init__(self, site: BuildingSite) -> None:
        self._site: Final = site

    def __enter__(self) -> None:
        self._site.begin_step()

    def __exit__(self, *failure: object) -> None:
        self._site.end_step()


SITE: Final = BuildingSite()
"""The building site of this process: whoever steps or builds in it uses this one."""

_log = logging.getLogger(__name__)


class ModelThread:
    """One daemon thread that calls functions in the order in which they are submitted. A process ends without waiting for it."""

    def __init__(self, name: str) -> None:
        self._work: Final[SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]] = SimpleQueue()
        self._latest: Future[Any] = Future()
        self._latest.set_result(None)
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Call `work` on the thread once all earlier calls have returned -> a future of its result. Whoever submits looks at that."""
        done: Future[R] = Future()
        self._latest = done
        self._work.put((done, work))
        return done

    def idle(self, timeout_s: float | None = None) -> bool:
        """Wait until every submitted call has returned, `timeout_s` seconds at most (None: for ever) -> whether all have."""
        return not wait([self._latest], timeout_s).not_done

    async def load(self, work: Callable[[], R]) -> R:
        """Call `work`, which loads a model, and await its result. Raises whatever `work` raises, and closes the thread then."""
        try:
            return await asyncio.wrap_future(self.submit(work))
        except BaseException:
            self.close()
            raise

    def start(self, work: Callable[[], object]) -> None:
        """Call `work` on the thread once all earlier calls have returned. Nobody waits for its result: what it raises is logged."""
        self.submit(work).add_done_callback(_report)

    def close(self) -> None:
        """End the thread once every submitted call has returned."""
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


async def apart(name: str, work: Callable[[], R]) -> R:
    """Call `work` on a thread of its own, which ends then, and await its result. Raises whatever `work` raises."""
    thread = ModelThread(name)
    try:
        return await asyncio.wrap_future(thread.submit(work))
    finally:
        thread.close()


def _report(done: Future[Any]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _log.error("work on the thread of the model failed", exc_info=error)
