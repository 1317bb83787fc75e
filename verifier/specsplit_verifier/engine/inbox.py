"""Events on their way to an engine, and which of its two threads they wake."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from specsplit_verifier.records.events import Inbound

Bell: TypeAlias = "queue.SimpleQueue[None]"
"""Wakes one thread."""


class Inbox:
    """Events in order. Any thread puts them in; who holds the engine's lock takes them out.

    They wake the engine thread between steps and the listener while a step runs, so that neither is woken for the other. Nothing is
    locked: an event is there before a bell is rung, and whoever has heard a bell, or silenced it, looks for events afterwards.
    """

    def __init__(self) -> None:
        self._events: deque[Inbound] = deque()
        self._engine: Bell = queue.SimpleQueue()
        self._listener: Bell = queue.SimpleQueue()
        self._stepping = self._closed = False

    def put(self, event: Inbound) -> None:
        """Add an event, from any thread."""
        self._events.append(event)
        _ring(self._listener if self._stepping else self._engine)

    def take(self) -> Inbound | None:
        """The next event; None if there is none."""
        return self._events.popleft() if self._events else None

    def empty(self) -> bool:
        """Whether there is no event."""
        return not self._events

    def wait(self, seconds: float | None) -> None:
        """Between steps: return once there is an event, or after so many seconds (None: however long it takes)."""
        if not self._engine.empty():
            self._engine.get_nowait()  # rung for what has been taken since
        if not self._events:
            self._sleep(self._engine, seconds)

    def listen(self, seconds: float | None) -> bool:
        """Return once a step has begun, an event has come while one runs, or after so many seconds (None: however long it takes).

        It may return for nothing, too. False once the inbox is closed.
        """
        self._sleep(self._listener, seconds)
        return not self._closed

    def begin_step(self) -> None:
        """A step runs from now on."""
        self._stepping = True
        _ring(self._listener)

    def end_step(self, deferred: Sequence[Inbound] = ()) -> None:
        """The step is over. `deferred`: what was taken meanwhile and comes next, in that order."""
        self._stepping = False
        self._events.extendleft(reversed(deferred))

    def close(self) -> None:
        """Nobody listens any more."""
        self._closed = True
        _ring(self._listener)

    def _sleep(self, bell: Bell, seconds: float | None) -> None:
        try:
            bell.get(timeout=seconds)
        except queue.Empty:
            return


def _ring(bell: Bell) -> None:
    if bell.empty():  # else it rings already
        bell.put(None)
