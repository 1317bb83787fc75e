"""Messages that carry events of many sessions: a malformed event ends its own session, and many of them end the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from specsplit.errors import InvalidRequest
from specsplit.wire.checks import check
from specsplit.wire.limits import MAX_EVENTS, MAX_MALFORMED_EVENTS, check_count


class _Event(Protocol):
    """A message that is of one session."""

    session_id: int


_Said = TypeVar("_Said")
_EventT = TypeVar("_EventT", bound=_Event)


def read_events(
    events: Sequence[_EventT], read: Callable[[_EventT], _Said]
) -> list[tuple[int, _Said | InvalidRequest]]:
    """What each says, by session; a malformed one comes out as the InvalidRequest that says why.

    Raises InvalidRequest for more events, or more malformed ones, than a message may hold.
    """
    check_count("events", events, MAX_EVENTS)
    parsed: list[tuple[int, _Said | InvalidRequest]] = []
    malformed = 0
    for event in events:
        try:
            check(event)  # pyright: ignore[reportArgumentType] (every event is a message)
            parsed.append((event.session_id, read(event)))
        except InvalidRequest as error:
            malformed += 1
            if malformed > MAX_MALFORMED_EVENTS:
                problem = f"has more than {MAX_MALFORMED_EVENTS} malformed entries, the last of them: {error}"
                raise InvalidRequest("events", problem) from error
            parsed.append((event.session_id, error))
    return parsed
