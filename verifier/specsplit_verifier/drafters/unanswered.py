"""The events that were sent to a drafter over one stream, and that it may still answer.

A stream keeps the order in both directions, and a grow says how many commits of its session it was made after. So once it has come, all
that was sent before the last of these commits is answered, except that every session that is still open may have more to say to its last
event.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from specsplit.draft_events import Close, Open, ToDrafter
from specsplit.speculation import Commit

SAVED: Final = 8
"""For each of its open sessions a drafter may use what so many events allow at a later time."""


@dataclass(slots=True)
class _Asked:
    """The open and the commits of one session, from the latest on that its drafter is known to have applied."""

    numbers: deque[int]
    """Number of each of these events among all events of the stream."""
    commits: int = 0
    """Commits sent so far."""

    def applied(self, commits: int) -> int:
        """Note that the drafter has applied so many commits -> the number of the last of them; 0 if so many were never sent."""
        if commits > self.commits:  # fewer were sent, so its word counts for nothing
            return 0
        while len(self.numbers) > 1 and self.commits - len(self.numbers) + 1 < commits:
            self.numbers.popleft()
        return self.numbers[0]


class Unanswered:
    """Events that were sent and may still be answered, and the sessions that are open."""

    def __init__(self) -> None:
        self.sessions: dict[int, _Asked] = {}
        """The sessions that are open, by id."""
        self._sent = 0
        self._answered = 0
        """How many of the events that were sent have been answered, in order."""

    @property
    def count(self) -> int:
        """Count them. A session that was closed counts as `SAVED` of them, which is what was saved for it while it was open."""
        return self._sent - self._answered

    def sent(self, session: int, event: ToDrafter) -> None:
        """Count one more event; a close is not answered."""
        if isinstance(event, Close):
            self._sent += SAVED if self.sessions.pop(session, None) else 0
            return
        self._sent += 1
        if isinstance(event, Open):
            self.sessions[session] = _Asked(deque([self._sent]))
        elif isinstance(event, Commit) and (asked := self.sessions.get(session)):
            asked.numbers.append(self._sent)
            asked.commits += 1

    def heard(self, session: int, commits: int) -> None:
        """Take in a grow that was made after so many commits of its session."""
        if asked := self.sessions.get(session):
            self._answered = max(self._answered, asked.applied(commits))
