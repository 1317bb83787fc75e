"""What a drafter owes: an answer to every open and commit, if only "resting". One that stays silent too long is as good as dead."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.draft_events import Close, FeaturesRead, Open, ToDrafter
from specsplit.features import Features

READING_S = 0.005  # a drafter may be silent for so much longer per token that it has to read first


class Claims:
    """The answers due from one drafter. It may be silent for `patience_s` while one is due, and longer while it has much to read.

    Features need no answer, and that they were read is none. The time to read them is granted when they go to a session that owes
    none, and anew with every sign of life; a drafter that owes an answer gains nothing by what else it is told. Who reads features
    answers an open at once; others read its tokens first.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._unanswered: set[int] = set()
        self._unread: dict[int, range] = {}
        self._since = 0.0
        """The silence that counts began here."""
        self._due_at = 0.0

    def told(self, session: int, event: ToDrafter, now: float) -> None:
        """Note that the drafter is sent an event. A close takes the claim back."""
        if isinstance(event, Close):
            self._unanswered.discard(session)
            self._unread.pop(session, None)
            return
        if not self._unanswered:
            self._since = now
        if isinstance(event, Features):
            unread = self._unread.get(session, range(event.first, event.first))
            self._unread[session] = range(unread.start, event.end)
            self._grant(0 if session in self._unanswered else self._num_unread)
            return
        self._grant(len(event.tokens) if isinstance(event, Open) and not event.features.width else 0)
        self._unanswered.add(session)

    def heard(self, events: Sequence[tuple[int, object]], now: float) -> None:
        """Note a sign of life, with what it says of which sessions."""
        for session, event in events:
            if not isinstance(event, FeaturesRead):
                self._unanswered.discard(session)
            elif session in self._unread:
                self._unread[session] = range(event.position, self._unread[session].stop)
        self._since = self._due_at = now
        self._grant(self._num_unread)

    def excuse(self, late_s: float) -> None:
        """This process stood still for so long, while what the drafter said waited in its sockets: that is not the drafter's silence."""
        self._since += late_s
        self._due_at += late_s

    def overdue(self, now: float) -> bool:
        """True if an answer is due and it is time to give up."""
        return bool(self._unanswered) and now > self._due_at

    @property
    def _num_unread(self) -> int:
        return sum(map(len, self._unread.values()))

    def _grant(self, tokens: int) -> None:
        """There may be silence until so many tokens are read, and as long as was granted before in any case."""
        self._due_at = max(self._due_at, self._since + self._patience_s + READING_S * tokens)
