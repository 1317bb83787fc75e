"""When callers are told what has come for them: at once or, while the event loop is behind, a few in each of its rounds.

A step brings tokens for many sessions at once. If all of their callers were woken together, the loop would read nothing until each of
them had been written to; what a verifier said meanwhile would wait where it cannot be gathered, and be late by ever more. So they are
woken in turn, and between two rounds the loop reads. What comes for one whose turn has not come leaves with what is there, as one message:
a loop that has more to do than it can sends larger messages, and not older ones. Nobody waits while the loop has nothing else to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

TOLD_IN_A_ROUND: Final = 16
"""Callers that are woken in one round of the loop: less than a millisecond of writing."""
LATE_S: Final = 0.001
"""The loop is behind when somebody's turn has not come for so long."""


class Waiter(Protocol):
    """Somebody who waits for what comes."""

    queued: bool
    """His turn has not come."""
    period: int
    """The period in which he was woken last."""

    def wake(self) -> None:
        """Have him take what has come."""
        ...


class Gathering:
    """Wakes all callers of one process. There is one timer for all of them, and none unless the loop is behind.

    While it is, time is cut into periods of `gather_s`, and nobody is woken twice in one: what comes for him waits for the next. So no
    token waits for longer than a period, and one that comes more than a period behind the last does not wait at all.
    """

    def __init__(self, gather_s: float) -> None:
        """`gather_s`: 0 lets nobody wait for more than his turn."""
        self._gather_s = gather_s
        self._queue: deque[Waiter] = deque()
        self._later: list[Waiter] = []
        """Who has been woken in this period already, and waits for the next."""
        self._left = TOLD_IN_A_ROUND
        """How many more may be woken in this round."""
        self._in_round = False
        self._since = 0.0
        """When the first of the queue entered it, or the last round was."""
        self._period = 0
        self._behind = False
        """Periods run."""
        self._late = False
        """Somebody's turn was late in this period."""

    def came(self, waiter: Waiter, *, at_once: bool = False) -> None:
        """Something has come for one who waits: wake him now if he has to know it `at_once`, else in his turn."""
        if at_once:
            self._wake(waiter)
        elif waiter.queued:
            return
        elif self._behind and waiter.period == self._period:
            waiter.queued = True
            self._later.append(waiter)
        elif self._left > 0 and not self._queue:
            self._wake(waiter)
        else:
            self._enqueue(waiter)

    def _enqueue(self, waiter: Waiter) -> None:
        if not self._queue:
            self._since = asyncio.get_running_loop().time()
        waiter.queued = True
        self._queue.append(waiter)
        self._begin_round()

    def _wake(self, waiter: Waiter) -> None:
        waiter.queued, waiter.period = False, self._period
        self._left -= 1
        self._begin_round()
        waiter.wake()

    def _begin_round(self) -> None:
        if not self._in_round:
            self._in_round = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._in_round, self._left = False, TOLD_IN_A_ROUND
        if self._queue:
            self._look(asyncio.get_running_loop())
        while self._queue and self._left > 0:
            waiter = self._queue.popleft()
            if waiter.queued:  # else he has been woken since
                self._wake(waiter)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """See whether the loop is behind."""
        if loop.time() - self._since < LATE_S:
            return
        self._late = True
        if self._gather_s and not self._behind:
            self._behind = True
            loop.call_later(self._gather_s, self._end_period)

    def _end_period(self) -> None:
        self._period += 1
        later, self._later = self._later, []
        for waiter in later:
            if waiter.queued:
                self._enqueue(waiter)
        self._behind, self._late = self._late, False
        if self._behind:
            asyncio.get_running_loop().call_later(self._gather_s, self._end_period)
