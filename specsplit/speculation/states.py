"""The protocol of one session as one table; docs/protocol.md is printed from it.

The drafter holds the *original* of the speculation, the verifier a *mirror*. Grows flow one way, commits the other, and they may
cross: that is why a grow is legal in every state of the mirror, and a commit in every state of the original.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from specsplit.errors import IllegalEvent


class Side(StrEnum):
    """The side that holds a copy."""

    ORIGINAL = "original"
    MIRROR = "mirror"


class State(StrEnum):
    """The states of a copy."""

    GROWING = "growing"
    """Original: there is room for nodes."""
    FULL = "full"
    """Original: max_nodes are live; only a commit makes room."""
    READY = "ready"
    """Mirror: no step is in flight."""
    STEPPING = "stepping"
    """Mirror: a step over some of its nodes is in flight."""
    CLOSED = "closed"
    """The session is over on this side; what the other side had in flight is let pass."""


class Event(StrEnum):
    """The events that can happen to a copy."""

    GROW = "grow"
    """Nodes are added by the drafter itself; or they arrive at the verifier, with other edges for those that it has."""
    RESCORE = "rescore"
    """The drafter gives live nodes other edges; the verifier is told with a grow."""
    FILL = "fill"
    """The last free place was taken."""
    TAKE = "take"
    """The verifier takes the best nodes for a step."""
    COMMIT = "commit"
    """A path was accepted: both sides reroot."""
    CLOSE = "close"
    """The session ends."""


TRANSITIONS: dict[tuple[Side, State, Event], State] = {
    (Side.ORIGINAL, State.GROWING, Event.GROW): State.GROWING,
    (Side.ORIGINAL, State.GROWING, Event.RESCORE): State.GROWING,
    (Side.ORIGINAL, State.GROWING, Event.FILL): State.FULL,
    (Side.ORIGINAL, State.GROWING, Event.COMMIT): State.GROWING,
    (Side.ORIGINAL, State.GROWING, Event.CLOSE): State.CLOSED,
    (Side.ORIGINAL, State.FULL, Event.RESCORE): State.FULL,
    (Side.ORIGINAL, State.FULL, Event.COMMIT): State.GROWING,
    (Side.ORIGINAL, State.FULL, Event.CLOSE): State.CLOSED,
    (Side.ORIGINAL, State.CLOSED, Event.COMMIT): State.CLOSED,
    (Side.ORIGINAL, State.CLOSED, Event.CLOSE): State.CLOSED,
    (Side.MIRROR, State.READY, Event.GROW): State.READY,
    (Side.MIRROR, State.READY, Event.TAKE): State.STEPPING,
    (Side.MIRROR, State.READY, Event.CLOSE): State.CLOSED,
    (Side.MIRROR, State.STEPPING, Event.GROW): State.STEPPING,
    (Side.MIRROR, State.STEPPING, Event.COMMIT): State.READY,
    (Side.MIRROR, State.STEPPING, Event.CLOSE): State.CLOSED,
    (Side.MIRROR, State.CLOSED, Event.GROW): State.CLOSED,
    (Side.MIRROR, State.CLOSED, Event.CLOSE): State.CLOSED,
}
"""Every legal (side, state, event) and the state it leads to; anything else raises IllegalEvent."""


class StateMachine:
    """The state of one copy, moved only along the table."""

    __slots__ = ("session", "side", "state")

    def __init__(self, session: int, side: Side) -> None:
        self.session = session
        self.side = side
        self.state = State.GROWING if side is Side.ORIGINAL else State.READY

    def advance(self, event: Event) -> State:
        """Move along the table; raises IllegalEvent if it does not allow `event` here."""
        after = TRANSITIONS.get((self.side, self.state, event))
        if after is None:
            self.refuse(event, f"not legal for the {self.side.value}")
        self.state = after
        return after

    def refuse(self, event: Event, why: str) -> NoReturn:
        """Raise IllegalEvent for `event` in the present state."""
        raise IllegalEvent(self.session, self.state.value, event.value, why)
