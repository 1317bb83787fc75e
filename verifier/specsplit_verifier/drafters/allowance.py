"""The work that a drafter may cause its verifier: every event that it is sent allows so much. A drafter that causes more is dropped.

What a drafter says has to be parsed, queued and applied whether or not it is of any use, so one that says very much takes time from
every session. An honest one says no more than it is asked for: behind an open, a commit or a plan it grows a tree of at most `max_nodes`
nodes, gives each of them another edge at most once, and tells of that in at most `MAX_GROWS` grows, each a message of its own at worst.
Once it rests it says so, if need be in a grow that is empty.

What one event allows and was not used is saved, of eight events for each open session and of all events that are not answered yet
(`verifier/specsplit_verifier/drafters/unanswered.py`): answers that were held up on the way come all at once.

Work is counted and not timed, so that no drafter is dropped because this machine is slow or busy: bytes before a message is parsed, then
events before they are read, and among these by themselves those that bring nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from specsplit.draft_events import MAX_GROWS, Close, Open, ToDrafter
from specsplit.errors import SpecsplitError
from specsplit.speculation import Grow
from specsplit.wire.drafter import Bulk
from specsplit_verifier.drafters.unanswered import SAVED, Unanswered

NODE_BYTES: Final = 32
"""Bytes allowed for a node that is grown, and then given another edge."""
EVENT_BYTES: Final = 64
"""Bytes allowed for an event, its nodes aside."""
RESTS: Final = 2
"""Events without anything in them that an honest drafter sends, at most, in answer to one event: that it rests, or refuses."""
UNANSWERED: Final = 16_384
"""Events that a drafter may leave unanswered, all sessions together, without losing what they allow: of 64 sessions 256 steps each."""


class Overdrawn(SpecsplitError):
    """A drafter caused more work than it was asked for."""


class _Credit:
    """The credit that is left for one kind of work."""

    def __init__(self, kind: str, each: float) -> None:
        self.kind = kind
        self.each = round(each)
        """Allowed for one event that the drafter is sent."""
        self.left = 0

    def fill(self, saved: int) -> None:
        """Add what one more event allows. What is left of so many events is saved."""
        self.left = min(self.left + self.each, self.each * saved)

    def take(self, work: int) -> None:
        """Spend some of it. Raises Overdrawn if that is more than is left."""
        if work > self.left:
            raise Overdrawn(
                f"it causes more work than it was asked for: a message of {work:,} {self.kind}, and it may send {self.left:,} more now; "
                f"each open, commit, plan and features event that it is told allows {self.each:,} (drafter_allowance)"
            )
        self.left -= work


class Allowance:
    """The work that one drafter may cause over one stream, and how much of it is left."""

    def __init__(self, max_nodes: int, margin: float) -> None:
        """`margin`: how many times the most that an honest drafter needs is allowed."""
        self._most_nodes = 2 * max_nodes
        self._bytes = _Credit("bytes", margin * (NODE_BYTES * max_nodes + EVENT_BYTES * (MAX_GROWS + RESTS)))
        self._events = _Credit("events", margin * (MAX_GROWS + RESTS))
        self._empty = _Credit("events that bring nothing", margin * RESTS)
        self._unanswered = Unanswered()
        self._all = self._bytes, self._events, self._empty
        self._last_session = 0
        """The highest id of a session that was opened."""

    def sent(self, session: int, event: ToDrafter) -> None:
        """Note that the drafter is sent an event, which it may answer."""
        unanswered = min(self._unanswered.count, UNANSWERED)
        self._unanswered.sent(session, event)
        if isinstance(event, Close):
            return
        if isinstance(event, Open):
            self._last_session = max(self._last_session, session)
        saved = SAVED * max(1, len(self._unanswered.sessions)) + unanswered
        for purse in self._all:
            purse.fill(saved)

    def parse(self, nbytes: int) -> None:
        """Count a message that is about to be parsed. Raises Overdrawn, saying what it was, if it is too much."""
        self._bytes.take(nbytes)

    def read(self, bulk: Bulk) -> None:
        """Count the events of a message before they are read. Raises Overdrawn if they are too many, or none of an honest drafter."""
        if bulk.last_session > self._last_session:
            raise Overdrawn(f"it speaks of session {bulk.last_session}, which it was never told of")
        if bulk.most_nodes > self._most_nodes:
            most = f"{self._most_nodes:,}, which is twice max_nodes"
            raise Overdrawn(f"one grow has {bulk.most_nodes:,} nodes and new edges, expected at most {most}")
        self._events.take(bulk.events)
        self._empty.take(bulk.empty if bulk.events else 1)

    def heard(self, events: Iterable[tuple[int, object]]) -> None:
        """Note events that were read, by session: what they answer is not unanswered any more."""
        for session, event in events:
            if isinstance(event, Grow):
                self._unanswered.heard(session, event.commits)
