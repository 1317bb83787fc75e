"""Output that is held back: nothing is lost or out of order, and messages hold as much as was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.stream_interval import MAX_STREAM_INTERVAL, Held, check_stream_interval
from specsplit.wire.limits import MAX_HELD


def messages(interval: int, sizes: list[int]) -> list[list[int]]:
    """The sizes of outputs, by the message that they are sent in; the last message is sent since there is no more."""
    held, sent = Held[int](interval), list[list[int]]()
    for size in sizes:
        if not held.holds((size,), size):
            sent.append([*held.release(), size])
    rest = held.release()
    return [*sent, rest] if rest else sent


def test_worked_by_hand() -> None:
    assert messages(4, [2, 1, 1, 3, 1, 1, 9, 1]) == [[2], [1, 1, 3], [1, 1, 9], [1]]
    assert messages(1, [1, 2, 1]) == [[1], [2], [1]]


@given(st.integers(1, 40), st.lists(st.integers(1, 9)))
def test_messages_hold_all_in_order_the_first_at_once_and_others_as_much_as_was_asked_for(
    interval: int, sizes: list[int]
) -> None:
    found = messages(interval, sizes)
    assert [size for message in found for size in message] == sizes
    assert not found or len(found[0]) == 1
    for message in found[1:-1]:
        assert sum(message) >= interval > sum(message[:-1])


def test_a_message_has_room_for_all_that_is_held_back() -> None:
    assert MAX_HELD >= 2 * MAX_STREAM_INTERVAL, (
        "a step of one token and no drafts is one event, one with drafts two deltas"
    )


def test_what_is_asked_for_has_bounds() -> None:
    check_stream_interval(1)
    check_stream_interval(MAX_STREAM_INTERVAL)
    for tokens in (0, -1, MAX_STREAM_INTERVAL + 1):
        with pytest.raises(InvalidRequest, match=r"stream_interval: is .*, expected 1\.\.1,024 tokens"):
            check_stream_interval(tokens)


@given(st.integers(1, 40), st.integers(2, 64), st.lists(st.tuples(st.integers(1, 9), st.booleans())))
def test_what_comes_while_something_is_on_its_way_is_gathered_in_order_and_never_more_than_was_said(
    interval: int, most: int, outputs: list[tuple[int, bool]]
) -> None:
    held, sent = Held[int](interval), list[list[int]]()
    for size, busy in outputs:
        if held.due and not busy:
            sent.append(held.release())
        if not held.holds((size,), size) and not (busy and held.gathers((size,), most)):
            sent.append([*held.release(), size])
    assert held.due <= bool(rest := held.release())
    assert [size for message in [*sent, rest] for size in message] == [size for size, _ in outputs]
    assert (not held.due and not rest) or sum(rest) < max(most, interval)
