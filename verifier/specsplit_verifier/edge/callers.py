"""The callers that wait for outputs, with a queue for every session. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from specsplit.errors import Unavailable
from specsplit_verifier.records.events import Output


class Callers:
    """The callers of Decode, by the number that their session gets here."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._queues: dict[int, asyncio.Queue[Output]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._why = ""
        self.failed = asyncio.Event()
        """Set once nothing can be decoded here any more."""

    @contextmanager
    def waiting(self) -> Iterator[tuple[int, asyncio.Queue[Output]]]:
        """Register the caller of a new session -> its number and its queue. Raises Unavailable once the verifier has failed."""
        if self.failed.is_set():
            raise Unavailable(self._why)
        session = next(self._ids)
        self._queues[session] = asyncio.Queue()
        self._idle.clear()
        try:
            yield session, self._queues[session]
        finally:
            del self._queues[session]
            if not self._queues:
                self._idle.set()

    def tell(self, session: int, output: Output) -> None:
        """Give an output to the caller of a session, if there still is one."""
        queue = self._queues.get(session)
        if queue is not None:
            queue.put_nowait(output)

    def fail(self, why: str) -> None:
        """End every session with this sentence, since nothing can be decoded here any more. The first sentence stands."""
        self._why = self._why or why
        self.failed.set()
        for queue in self._queues.values():
            queue.put_nowait(Unavailable(self._why))

    async def gone(self) -> None:
        """Return once no caller waits."""
        await self._idle.wait()
