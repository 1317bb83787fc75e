"""What is unread of one call: in order, counted, and bounded by what the caller could help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import Unread
from specsplit.generation.unread import LARGE_BYTES, UnreadMessages
from specsplit.v1 import coordinator_pb2

Message = coordinator_pb2.GenerateRequest
MOST = 2000


def message(size: int) -> Message:
    """One of so many bytes, at least 3."""
    made = Message(text="x" * (size - 2))
    return Message(text="x" * (2 * size - 2 - made.ByteSize()))  # a long one has a longer length


def held(unread: UnreadMessages[Message]) -> bool:
    """Whether the caller is held to the bound."""
    try:
        unread.check()
    except Unread:
        return True
    return False


@given(st.lists(st.tuples(st.integers(3, 120), st.booleans()), max_size=60))
def test_they_are_taken_in_order_and_the_bound_is_that_of_their_sum(steps: list[tuple[int, bool]]) -> None:
    unread, left = UnreadMessages[Message](1000), list[Message]()
    for size, read in steps:
        left.append(made := message(size))
        unread.add((made,))
        if read:
            assert unread.take() is left.pop(0)
        total = sum(each.ByteSize() for each in left)
        assert (held(unread), unread.roomy, bool(unread)) == (total > 1000, total <= 500, bool(left))


def test_what_is_larger_than_the_bound_by_itself_has_one_of_its_own_without_the_latest() -> None:
    unread = UnreadMessages[Message](MOST)
    unread.add((message(LARGE_BYTES),))
    unread.add((message(50_000),))
    unread.add((message(50),))
    assert not held(unread) and not unread.roomy
    unread.add((message(50_000),))
    assert held(unread)
    unread.take()
    assert not held(unread)


def test_messages_of_one_event_count_together() -> None:
    unread = UnreadMessages[Message](MOST)
    unread.add([message(1500), message(1500)])
    assert not held(unread), "they came at once, and are more than may be unread"
    unread.add((message(1500),))
    unread.add((message(600),))
    assert held(unread)


def test_a_prompt_counts_towards_no_bound_but_takes_room() -> None:
    unread = UnreadMessages[Message](MOST)
    for _ in range(9):
        unread.add((message(1500),), prompt=True)
    assert not held(unread) and not unread.roomy
    for size in (1500, 600):
        unread.add((message(size),))
    with pytest.raises(Unread, match="with 2,100 bytes of it unread; at most 2,000 are kept"):
        unread.check()
