"""What has come for one session, until its turn to be told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from specsplit.generation.gathering import Gathering

Event = TypeVar("Event")


class Inbox(Generic[Event]):
    """Filled as things come, and emptied in its turn. It is made and used on one event loop."""

    def __init__(self, gathering: Gathering, take: Callable[[Sequence[Event]], bool]) -> None:
        """`gathering`: says whose turn it is.

        `take`: called with all that has come since it was last called, in order; True: it wants no more. What it raises ends the session.
        """
        self._gathering = gathering
        self._take = take
        self._events: list[Event] = []
        self._last = False
        """Nothing more comes."""
        self._error: Exception | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queued = False
        """Its turn has not come."""
        self.period = -1
        """The period of the gathering in which it had its last turn."""

    def put(self, events: Sequence[Event], *, at_once: bool = False) -> None:
        """Add what has come, unless it is over. `at_once`: it does not wait for its turn."""
        if self._over.done():
            return
        self._events += events
        self._gathering.came(self, at_once=at_once)

    def end(self, error: Exception | None = None) -> None:
        """Nothing more comes: what is there is told, and then it is over. The first error stands."""
        if not self._last:
            self._last, self._error = True, error
            self._gathering.came(self, at_once=True)

    async def over(self) -> None:
        """Return when all has been told, or no more is wanted. Raises what ended it, or what `take` raised."""
        await self._over

    def wake(self) -> None:
        """Tell what has come."""
        if self._over.done():
            return
        events, self._events = self._events, []
        try:
            left = bool(events) and self._take(events)
        except Exception as error:  # noqa: BLE001 (of whoever waits until it is over)
            self._end(error)
        else:
            if left or self._last:
                self._end(None if left else self._error)

    def _end(self, error: Exception | None) -> None:
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
            self._over.exception()  # retrieved, so that asyncio does not log it if whoever waited is gone
