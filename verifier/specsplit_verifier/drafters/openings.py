"""The numbers by which sessions go on the stream to one drafter: each opening has its own.

A session may be closed there and opened again (it was preempted, or handed over and back) while what the drafter said of it before is
still on its way. That names the earlier opening, so it is not taken for what is said of the later one. What comes after the engine has
opened it again, and before the stream is told of that, the engine lets pass: `FromDrafter.openings` says what the streams knew of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from specsplit.draft_events import Close, Open, ToDrafter

OVER: Final = -1
"""Stands for the session of an opening that is over, or never was."""

_Event = TypeVar("_Event")


class Openings:
    """The sessions that are open on one stream."""

    def __init__(self) -> None:
        self._last = 0
        self._numbers: dict[int, int] = {}
        self._sessions: dict[int, int] = {}

    def tell(self, session: int, event: ToDrafter) -> int | None:
        """Look up the number of a session on the stream. An open makes a new one; after a close there is none.

        None: the session was not opened on this stream.
        """
        if isinstance(event, Open):
            self._sessions.pop(self._numbers.get(session, 0), None)
            self._last += 1
            self._numbers[session], self._sessions[self._last] = self._last, session
            return self._last
        number = self._numbers.get(session)
        if number is not None and isinstance(event, Close):
            del self._numbers[session], self._sessions[number]
        return number

    def heard(self, events: Iterable[tuple[int, _Event]]) -> list[tuple[int, _Event]]:
        """Translate events by number to events by session; OVER stands for sessions that are not open."""
        return [(self._sessions.get(number, OVER), event) for number, event in events]
