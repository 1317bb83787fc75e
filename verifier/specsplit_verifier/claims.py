"""What a drafter owes: an answer to every open and commit, if only "resting". One that stays silent too long is as good as dead."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.features import Features
from specsplit.sessions import Close, FeaturesRead, Open
from specsplit_verifier.events import DraftEvent

READING_S = 0.005  # a drafter may be silent for so much longer per token that it has to read first


class Claims:
    """The answers due from one drafter. It may be silent for `patience_s` while one is due, and longer while it has much to read.

    Features need no answer. The time to read them is granted when they go to a session that owes none, and anew with every sign of
    life; a drafter that owes an answer gains nothing by what else it is told.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._unanswered: set[int] = set()
        self._unread: dict[int, range] = {}
        self._due_at = 0.0

    def told(self, session: int, event: DraftEvent, now: float) -> None:
        """The drafter is sent an event. A close takes the claim back."""
        if isinstance(event, Close):
            self._unanswered.discard(session)
            self._unread.pop(session, None)
            return
        if not self._unanswered:
            self._due_at = max(self._due_at, now + self._patience_s)
        if isinstance(event, Features):
            unread = self._unread.get(session, range(event.first, event.first))
            self._unread[session] = range(unread.start, event.end)
            self._due_at += 0.0 if session in self._unanswered else READING_S * event.count
            return
        if isinstance(event, Open):
            self._due_at += READING_S * len(event.tokens)
        self._unanswered.add(session)

    def heard(self, events: Sequence[tuple[int, object]], now: float) -> None:
        """A sign of life, with what it says of which sessions."""
        for session, event in events:
            self._unanswered.discard(session)
            if isinstance(event, FeaturesRead) and session in self._unread:
                self._unread[session] = range(event.position, self._unread[session].stop)
        self._due_at = now + self._patience_s + READING_S * sum(map(len, self._unread.values()))

    def overdue(self, now: float) -> bool:
        """True if an answer is due and it is time to give up."""
        return bool(self._unanswered) and now > self._due_at
