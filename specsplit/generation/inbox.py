"""What has come for one session, until it is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from specsplit.generation.gathering import Gathering

Event = TypeVar("Event")


class Inbox(Generic[Event]):
    """Filled as things come, and emptied by one reader."""

    def __init__(self, gathering: Gathering, weigh: Callable[[Event], int] = lambda event: 0) -> None:
        """`gathering`: says when the reader is woken. `weigh`: gives the bytes of an event."""
        self._gathering = gathering
        self._weigh = weigh
        self._events: list[Event] = []
        self._error: Exception | None = None
        self._wanted: asyncio.Future[None] | None = None
        self.waiting_bytes = 0
        """Of what has come behind the first that waits. That one is not weighed, nor is anything where events are taken as they come."""
        self.queued = False
        """The reader's turn to be woken has not come."""
        self.period = -1
        """The period of the gathering in which the reader was woken last."""

    def put(self, events: Sequence[Event], *, at_once: bool = False) -> None:
        """Add what has come. `at_once`: its reader does not wait for his turn."""
        if self._events:
            self.waiting_bytes += sum(map(self._weigh, events))
        self._events += events
        if self._wanted is not None and not self._wanted.done():
            self._gathering.came(self, at_once=at_once)

    def end(self, error: Exception) -> None:
        """Nothing more comes; the first error stands."""
        self._error = self._error or error
        self.wake()

    async def get(self) -> Sequence[Event]:
        """All that has come since it was last asked, in order, at least one event; what ended the session is raised behind it."""
        if not self._events and self._error is None:
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        if self._events:
            events, self._events, self.waiting_bytes = self._events, [], 0
            return events
        assert self._error is not None
        raise self._error

    def wake(self) -> None:
        """Have the reader go on."""
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
