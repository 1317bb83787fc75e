"""The answers that a drafter owes: one to every open and commit, "resting" at least. One that is silent for too long counts as dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specsplit.draft_events import Close, FeaturesRead, Open, ToDrafter
from specsplit.features import Features

READING_S = 0.005  # a drafter may be silent for so much longer per token that it has to read first
LONGEST_READING_S = 60.0


@dataclass(slots=True)
class _Owed:
    """What is due for one session."""

    since: float
    """The time at which the first event without an answer was sent."""
    prompt: int = 0
    """Tokens of an open that have to be read before the answer."""


@dataclass(slots=True)
class _Unread:
    """Features on their way to one session."""

    positions: range
    until: float = 0.0
    """The time until which the drafter may read them rather than answer."""


class Claims:
    """The answers due from one drafter. It may be silent for `patience_s` while one is due, and longer while that session has much to read.

    A sign of life is an answer that is due, or that features were read which it had not read yet; nothing else that is sent counts.
    That features were read is no answer. The time to read them is granted when they go to a session that owes none, and anew with every
    sign of life; a session that owes an answer gains nothing by what else it is sent. Who reads features answers an open at once;
    others read its tokens first, in which time they may answer no other open, but commits they do.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._owed: dict[int, _Owed] = {}
        self._unread: dict[int, _Unread] = {}
        self._alive_at = 0.0
        """The last sign of life."""

    def sent(self, session: int, event: ToDrafter, now: float) -> None:
        """Note that the drafter is sent an event. A close takes the claim back."""
        match event:
            case Close():
                self._owed.pop(session, None)
                self._unread.pop(session, None)
            case Features():
                self._sent_features(session, event, now)
            case _:
                if session not in self._owed:
                    self._owed[session] = _Owed(now)
                if isinstance(event, Open) and not event.features.width:
                    self._owed[session].prompt = len(event.tokens)

    def _sent_features(self, session: int, features: Features, now: float) -> None:
        unread = self._unread.setdefault(session, _Unread(range(features.first, features.first)))
        unread.positions = range(unread.positions.start, features.end)
        if session not in self._owed:
            unread.until = max(unread.until, self._time_to_read(unread, now))

    def heard(self, events: Sequence[tuple[int, object]], now: float) -> None:
        """Note what the drafter says of which sessions."""
        alive = False
        for session, event in events:
            alive |= self._read(session, event) if isinstance(event, FeaturesRead) else self._answered(session)
        if alive:
            self._alive_at = now
            for unread in self._unread.values():
                unread.until = self._time_to_read(unread, now)

    def _answered(self, session: int) -> bool:
        return self._owed.pop(session, None) is not None

    def _read(self, session: int, event: FeaturesRead) -> bool:
        unread = self._unread.get(session)
        if unread is None or not unread.positions.start < event.position <= unread.positions.stop:
            return False
        unread.positions = range(event.position, unread.positions.stop)
        return True

    def excuse(self, late_s: float) -> None:
        """Leave out a time in which this process stood still: what the drafter said waited in its sockets, so it was not silent."""
        self._alive_at += late_s
        for owed in self._owed.values():
            owed.since += late_s
        for unread in self._unread.values():
            unread.until += late_s

    def overdue(self, now: float) -> bool:
        """Tell whether an answer is overdue for so long that the drafter is given up."""
        longest = max((owed.prompt for owed in self._owed.values()), default=0)
        return any(now > self._due_at(session, owed, longest) for session, owed in self._owed.items())

    def _due_at(self, session: int, owed: _Owed, longest: int) -> float:
        due_at = max(owed.since, self._alive_at) + self._patience_s + _reading_s(longest if owed.prompt else 0)
        return max(due_at, self._unread[session].until) if session in self._unread else due_at

    def _time_to_read(self, unread: _Unread, now: float) -> float:
        return now + self._patience_s + _reading_s(len(unread.positions))


def _reading_s(tokens: int) -> float:
    return min(READING_S * tokens, LONGEST_READING_S)
