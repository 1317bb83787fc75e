"""Events of a Draft stream, parted into messages that the other side takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from specsplit.features import Features
from specsplit.sessions import Open
from specsplit.speculation import Commit, Grow
from specsplit.wire.drafter import ToDrafter, ToVerifier
from specsplit.wire.limits import MAX_EVENTS

_Said = TypeVar("_Said", bound="ToDrafter | ToVerifier")

_TOKEN_BYTES = 5
"""Of a token id on the wire, at most."""
_NODE_BYTES = 29
"""Of a node: id, parent, token and score."""


def packed(events: Iterable[tuple[int, _Said]], most_bytes: int) -> Iterator[list[tuple[int, _Said]]]:
    """(session, event)s in order, parted so that no message holds more than `MAX_EVENTS`, or more than half of `most_bytes` in its lists.

    An event that is larger by itself is a message of its own.
    """
    message: list[tuple[int, _Said]] = []
    size = 0
    for session, event in events:
        more = bytes_of(event)
        if message and (len(message) == MAX_EVENTS or (size and size + more > most_bytes // 2)):
            yield message
            message, size = [], 0
        message.append((session, event))
        size += more
    if message:
        yield message


def bytes_of(event: ToDrafter | ToVerifier) -> int:
    """What the lists of an event take on the wire, at most; what else an event holds is short."""
    match event:
        case Features():
            return len(event.data) + len(event.scales)
        case Open() | Commit():
            return _TOKEN_BYTES * len(event.tokens)
        case Grow():
            return _NODE_BYTES * len(event.ids)
        case _:
            return 0
