"""The work that a drafter may cause: what an honest one can cause at most is always allowed, and what nobody was asked for never."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.draft_events import MAX_GROWS, Close, FeaturesRead, Open, Refuse, ToDrafter
from specsplit.features import Features
from specsplit.speculation import Commit, Grow
from specsplit.values import Plan, Sampling, Vocabulary
from specsplit.wire.drafter import Bulk, bulk_of, draft_response
from specsplit.wire.limits import MAX_NODES as LARGEST_TREE
from specsplit_drafter.unsent import UnsentGrows
from specsplit_verifier.allowance import EVENT_BYTES, NODE_BYTES, RESTS, SAVED, Allowance, Overdrawn

MAX_NODES = 64
OPEN = Open((1, 2), Sampling(), Plan(), Vocabulary(9), MAX_NODES)
BYTES = NODE_BYTES * MAX_NODES + EVENT_BYTES * (MAX_GROWS + RESTS)
"""What one event allows with a margin of 1."""
ASKING: list[ToDrafter] = [OPEN, Commit(1, 0, (3,)), Plan(), Features(0, 1, b"")]
HIGHEST = 2**31
"""Ids of nodes below this take as many bytes as any that a drafter gets to."""
NODE, EMPTY = Bulk(1, 0, 1, 1), Bulk(1, 1, 0, 1)
"""Messages of one event: a grow of one node, and one that is empty."""


def uses_of(allowance: Allowance, bulk: Bulk) -> int:
    """How many such messages are let through."""
    uses = 0
    while True:
        try:
            allowance.read(bulk)
        except Overdrawn:
            return uses
        uses += 1


@pytest.mark.parametrize("event", ASKING, ids=lambda event: type(event).__name__)
def test_every_event_that_asks_for_something_allows_as_much(event: ToDrafter) -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.told(1, OPEN)
    assert uses_of(allowance, NODE) == MAX_GROWS + RESTS
    allowance.parse(BYTES)
    allowance.told(1, event)
    assert uses_of(allowance, NODE) == MAX_GROWS + RESTS
    allowance.told(1, event)
    assert uses_of(allowance, EMPTY) == 3 * RESTS
    allowance.parse(2 * BYTES)
    with pytest.raises(Overdrawn):
        allowance.parse(1)


def test_a_close_allows_nothing() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.told(1, OPEN)
    uses_of(allowance, NODE)
    allowance.told(1, Close())
    assert uses_of(allowance, NODE) == 0


@pytest.mark.parametrize("sessions", [1, 3])
@pytest.mark.parametrize(("message", "each"), [(NODE, MAX_GROWS + RESTS), (EMPTY, RESTS)])
def test_what_is_left_is_saved_for_a_while_and_more_for_more_sessions(message: Bulk, each: int, sessions: int) -> None:
    allowance = Allowance(MAX_NODES, 2.0)
    for session in range(1, sessions + 1):
        allowance.told(session, OPEN)
        for number in range(100):
            allowance.told(session, Commit(number + 1, 0, (3,)))
    assert uses_of(allowance, message) == SAVED * sessions * 2 * each


def test_what_is_too_much_is_named_with_what_was_left_and_what_was_allowed() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.told(1, OPEN)
    allowance.read(NODE)
    allowance.parse(1000)
    with pytest.raises(Overdrawn) as refused:
        allowance.parse(100_000)
    assert f"a message of 100,000 bytes, and {BYTES - 1000:,} are left of {BYTES:,} for each open" in str(refused.value)
    with pytest.raises(Overdrawn, match="a message of 200 events, and 49 are left of 50 for"):
        allowance.read(Bulk(200, 0, 1, 1))
    with pytest.raises(Overdrawn, match="a message of 3 events that bring nothing, and 2 are left of 2 for"):
        allowance.read(Bulk(5, 3, 1, 1))


def test_a_message_without_events_brings_nothing_either() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.told(1, OPEN)
    assert uses_of(allowance, Bulk(0, 0, 0, 0)) == RESTS


def test_a_session_that_was_never_opened_on_the_stream_is_none_of_the_drafters_and_one_that_is_closed_may_be() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.told(7, OPEN)
    allowance.told(7, Close())
    allowance.read(Bulk(1, 0, 1, 7))
    with pytest.raises(Overdrawn, match="session 8, which it was never told of"):
        allowance.read(Bulk(1, 0, 1, 8))


def test_a_grow_of_more_than_a_session_may_have_is_refused_whatever_is_left() -> None:
    allowance = Allowance(MAX_NODES, 1000.0)
    allowance.told(1, OPEN)
    allowance.read(Bulk(1, 0, 2 * MAX_NODES, 1))
    with pytest.raises(Overdrawn, match="one grow has 129 nodes and new edges, expected at most 128, which is twice"):
        allowance.read(Bulk(1, 0, 2 * MAX_NODES + 1, 1))


def test_how_much_there_is_to_a_message_is_told_without_reading_its_events() -> None:
    grow = Grow(0, (1, 2), (0, 0), (3, 4), (-0.5, -1.0), False, (1,), (-0.25,))
    message = draft_response([(3, Grow(0)), (5, grow), (4, FeaturesRead(7)), (2, Refuse(8, "no"))])
    assert bulk_of(message) == Bulk(4, 2, 3, 5)
    assert bulk_of(draft_response([])) == Bulk(0, 0, 0, 0)


class Honest:
    """A session at a drafter that makes as many nodes as it may, in pieces of any size, and speaks whenever it can."""

    def __init__(self) -> None:
        self.unsent = UnsentGrows()
        self._next = HIGHEST
        self._room = self._edges = MAX_NODES
        self.commits = 0

    def grow(self, nodes: int, edges: int) -> None:
        """Make nodes, and give other edges, as many as are still to be had between two commits."""
        nodes, edges = min(nodes, self._room), min(edges, self._edges)
        self._room -= nodes
        self._edges -= edges
        ids = range(self._next, self._next + nodes)
        self._next += nodes
        again = range(HIGHEST, HIGHEST + edges)
        if not nodes and not edges:
            return
        self.unsent.add(
            Grow(self.commits, ids, ids, (2**32 - 1,) * nodes, (-1.0,) * nodes, False, again, (-1.0,) * edges)
        )

    def commit(self) -> None:
        """Everything dies, and may be grown anew."""
        self.unsent.seal()
        self.commits += 1
        self._room = self._edges = MAX_NODES

    def tell(self) -> list[Grow]:
        """What it says now; it rests once it can make nothing more."""
        return self.unsent.take(self.commits, not (self._room or self._edges), whole=False)


pieces = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=80)


@given(st.lists(pieces, min_size=1, max_size=4), st.integers(1, 3))
def test_an_honest_drafter_never_uses_up_what_it_is_allowed(steps: list[list[tuple[int, int]]], sessions: int) -> None:
    """Every grow in a message of its own, as many grows as there can be, and not one event saved up from before."""
    allowance, honest = Allowance(MAX_NODES, 1.0), [Honest() for _ in range(sessions)]
    for session in range(sessions):
        allowance.told(session, OPEN)
    for grown in steps:
        for session, drafter in enumerate(honest):
            for nodes, edges in grown:
                drafter.grow(nodes, edges)
                for grow in drafter.tell():
                    message = draft_response([(session, grow)])
                    allowance.parse(message.ByteSize())
                    allowance.read(bulk_of(message))
            allowance.told(session, Commit(drafter.commits + 1, 0, (3,)))
            drafter.commit()


def told_of(sizes: Iterable[int]) -> list[Grow]:
    """The grows in which a verifier hears of pieces of these sizes, which come one by one between two commits."""
    unsent, told, first = UnsentGrows(), list[Grow](), 1
    for size in sizes:
        ids = range(first, first + size)
        first += size
        unsent.add(Grow(0, ids, ids, (0,) * size, (0.0,) * size))
        told += unsent.take(0, False, whole=False)
    return [*told, *unsent.take(0, True, whole=False)]


@given(st.lists(st.integers(1, 100), max_size=300))
def test_behind_one_event_a_drafter_tells_of_a_session_in_few_grows(sizes: list[int]) -> None:
    told = told_of(sizes)
    assert len(told) <= MAX_GROWS
    assert [node for grow in told for node in grow.ids] == list(range(1, sum(sizes) + 1)), "and of all that it made"
    assert told[-1].resting


def test_the_largest_tree_that_may_be_asked_for_is_told_of_in_few_grows_node_by_node() -> None:
    assert len(told_of([1] * 2 * LARGEST_TREE)) <= MAX_GROWS
    assert [len(grow.ids) for grow in told_of([10] * 54)] == [*[10] * 24, 120, 180, 0], "the worked example"
