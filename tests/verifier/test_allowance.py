"""The work that a drafter may cause: what an honest one can cause at most is always allowed, and what nobody was asked for never."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specsplit.draft_events import MAX_GROWS, Close, FeaturesRead, Open, Refuse, ToDrafter
from specsplit.errors import InvalidRequest
from specsplit.features import Features
from specsplit.settings import VerifierSettings
from specsplit.speculation import Commit, Grow
from specsplit.v1.drafter_pb2 import DraftResponse
from specsplit.values import Plan, Sampling, Vocabulary
from specsplit.wire.drafter import Bulk, bulk_of, draft_response, draft_response_events
from specsplit.wire.limits import MAX_NODES as LARGEST_TREE
from specsplit_drafter.growth.unsent import UnsentGrows
from specsplit_verifier.drafters.allowance import EVENT_BYTES, NODE_BYTES, RESTS, UNANSWERED, Allowance, Overdrawn
from specsplit_verifier.drafters.unanswered import SAVED

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
    allowance.sent(1, OPEN)
    assert uses_of(allowance, NODE) == MAX_GROWS + RESTS
    allowance.parse(BYTES)
    allowance.sent(1, event)
    assert uses_of(allowance, NODE) == MAX_GROWS + RESTS
    allowance.sent(1, event)
    assert uses_of(allowance, EMPTY) == 3 * RESTS
    allowance.parse(2 * BYTES)
    with pytest.raises(Overdrawn):
        allowance.parse(1)


def test_a_close_allows_nothing() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.sent(1, OPEN)
    uses_of(allowance, NODE)
    allowance.sent(1, Close())
    assert uses_of(allowance, NODE) == 0


@pytest.mark.parametrize("sessions", [1, 3])
@pytest.mark.parametrize(("message", "each"), [(NODE, MAX_GROWS + RESTS), (EMPTY, RESTS)])
def test_what_is_left_is_saved_for_a_while_and_more_for_more_sessions(message: Bulk, each: int, sessions: int) -> None:
    allowance = Allowance(MAX_NODES, 2.0)
    for session in range(1, sessions + 1):
        allowance.sent(session, OPEN)
        for number in range(1, 101):
            allowance.sent(session, Commit(number, 0, (3,)))
            allowance.heard([(session, Grow(number))])
    assert uses_of(allowance, message) == SAVED * sessions * 2 * each


def test_what_unanswered_events_allow_is_saved_however_late_the_answers_come() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.sent(1, OPEN)
    for number in range(1, 41):
        allowance.sent(1, Commit(number, 0, (3,)))
    assert uses_of(allowance, EMPTY) == 41 * RESTS
    allowance.heard([(1, Grow(33))])
    for number in range(41, 141):
        allowance.sent(1, Commit(number, 0, (3,)))
        allowance.heard([(1, Grow(number - 7)), (1, Grow(0)), (1, FeaturesRead(5)), (2, Grow(500)), (1, Grow(500))])
    assert uses_of(allowance, EMPTY) == (SAVED + 7) * RESTS, "those are answered that a grow was made after"


def test_of_unanswered_events_so_many_are_saved_and_no_more() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.sent(1, OPEN)
    for number in range(2 * UNANSWERED):
        allowance.sent(1, Commit(number + 1, 0, (3,)))
        allowance.heard([(1, Grow(0))])
    assert uses_of(allowance, EMPTY) == (SAVED + UNANSWERED) * RESTS


def test_what_was_saved_for_sessions_that_are_over_is_kept_until_what_they_had_said_must_have_come() -> None:
    """63 of 64 sessions end in the step after a commit, the last goes on, and what had been said of that commit comes later."""
    allowance, sessions = Allowance(MAX_NODES, 2.0), range(1, 65)
    for session in sessions:
        allowance.sent(session, OPEN)
    allowance.heard([(session, Grow(0)) for session in sessions])
    for session in sessions:
        allowance.sent(session, Commit(1, 0, (3,)))
    allowance.heard([(64, Grow(1))])
    for session in sessions[:-1]:
        allowance.sent(session, Close())
    for number in range(2, 5):
        allowance.sent(64, Commit(number, 0, (3,)))
    allowance.read(bulk_of(draft_response([(session, Grow(1, resting=True)) for session in sessions])))
    allowance.heard([(64, Grow(4))])
    allowance.sent(64, Commit(5, 0, (3,)))
    assert uses_of(allowance, EMPTY) == SAVED * 2 * RESTS, "nothing of them can come any more"


def test_a_grow_after_more_commits_than_were_told_answers_nothing() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.sent(1, OPEN)
    for number in range(1, 31):
        allowance.sent(1, Commit(number, 0, (3,)))
        if number < 2:
            allowance.heard([(1, Grow(2))])
    assert uses_of(allowance, EMPTY) == 31 * RESTS


def test_what_is_too_much_is_named_with_what_was_left_and_what_was_allowed() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.sent(1, OPEN)
    allowance.read(NODE)
    allowance.parse(1000)
    with pytest.raises(Overdrawn) as refused:
        allowance.parse(100_000)
    assert str(refused.value) == (
        f"it causes more work than it was asked for: a message of 100,000 bytes, and it may send {BYTES - 1000:,} more now; "
        f"each open, commit, plan and features event that it is told allows {BYTES:,} (drafter_allowance)"
    )
    with pytest.raises(Overdrawn, match=r"a message of 200 events, and it may send 49 more now; each .* allows 50 "):
        allowance.read(Bulk(200, 0, 1, 1))
    nothing = r"a message of 3 events that bring nothing, and it may send 2 more now; each .* allows 2 "
    with pytest.raises(Overdrawn, match=nothing):
        allowance.read(Bulk(5, 3, 1, 1))


def test_the_largest_allowance_that_may_be_set_can_be_counted() -> None:
    most = {"drafter_allowance": 1e6, "max_nodes": 65_536}
    settings = VerifierSettings(model=Path("unused"), **most)
    allowance = Allowance(settings.max_nodes, settings.drafter_allowance)
    allowance.sent(1, OPEN)
    allowance.parse(2**31)
    with pytest.raises(InvalidRequest, match="drafter_allowance"):
        VerifierSettings(model=Path("unused"), drafter_allowance=1e305)


def test_a_message_without_events_brings_nothing_either() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.sent(1, OPEN)
    assert uses_of(allowance, Bulk(0, 0, 0, 0)) == RESTS


def test_a_session_that_was_never_opened_on_the_stream_is_none_of_the_drafters_and_one_that_is_closed_may_be() -> None:
    allowance = Allowance(MAX_NODES, 1.0)
    allowance.sent(7, OPEN)
    allowance.sent(7, Close())
    allowance.read(Bulk(1, 0, 1, 7))
    with pytest.raises(Overdrawn, match="session 8, which it was never told of"):
        allowance.read(Bulk(1, 0, 1, 8))


def test_a_grow_of_more_than_a_session_may_have_is_refused_whatever_is_left() -> None:
    allowance = Allowance(MAX_NODES, 1000.0)
    allowance.sent(1, OPEN)
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
        self._free_nodes = self._edges = MAX_NODES
        self.commits = 0

    def grow(self, nodes: int, edges: int) -> None:
        """Make nodes, and give other edges, as many as are still to be had between two commits."""
        nodes, edges = min(nodes, self._free_nodes), min(edges, self._edges)
        self._free_nodes -= nodes
        self._edges -= edges
        ids = range(self._next, self._next + nodes)
        self._next += nodes
        again = range(HIGHEST, HIGHEST + edges)
        if not nodes and not edges:
            return
        self.unsent.add(
            Grow(self.commits, ids, ids, (2**32 - 1,) * nodes, (-1.0,) * nodes, False, again, (-1.0,) * edges)
        )

    def rest(self) -> None:
        """Make nothing more before the next commit."""
        self._free_nodes = self._edges = 0

    def commit(self) -> None:
        """Everything dies, and may be grown anew."""
        self.unsent.seal()
        self.commits += 1
        self._free_nodes = self._edges = MAX_NODES

    def tell(self) -> list[Grow]:
        """What it says now; it rests once it can make nothing more."""
        return self.unsent.take(self.commits, not (self._free_nodes or self._edges), 0.0, 0.0, whole=False)


class HonestDrafter:
    """Its sessions, and wires on which what both sides say may be held up as long as the order stays."""

    def __init__(self, sessions: int) -> None:
        self.sessions = {session: Honest() for session in range(1, sessions + 1)}
        self.commits = dict.fromkeys(self.sessions, 0)
        """Told, by session that is open at the verifier."""
        self._allowance = Allowance(MAX_NODES, 1.0)
        self._to_drafter: deque[tuple[int, ToDrafter]] = deque()
        self._to_verifier: deque[DraftResponse] = deque()
        for session in self.sessions:
            self._allowance.sent(session, OPEN)

    def tell(self, session: int, event: ToDrafter) -> None:
        self._allowance.sent(session, event)
        self._to_drafter.append((session, event))

    def step(self) -> None:
        """Every session that is open is told of a commit."""
        for session in self.commits:
            self.commits[session] += 1
            self.tell(session, Commit(self.commits[session], 0, (3,)))

    def close(self, session: int) -> None:
        del self.commits[session]
        self.tell(session, Close())

    def say(self, pieces: Sequence[tuple[int, int]], *, rests: bool) -> None:
        """Every session grows these pieces, one by one, and rests then, perhaps. Each grow is a message."""
        for session, honest in self.sessions.items():
            for nodes, edges in pieces:
                honest.grow(nodes, edges)
                self._send(session, honest)
            if rests:
                honest.rest()
            self._send(session, honest)

    def _send(self, session: int, honest: Honest) -> None:
        self._to_verifier.extend(draft_response([(session, grow)]) for grow in honest.tell())

    def deliver(self, behind: int, late: int) -> None:
        """All arrives but for the last events to the drafter, and the last messages of it, so many of them."""
        while len(self._to_drafter) > behind:
            session, event = self._to_drafter.popleft()
            if isinstance(event, Close):
                del self.sessions[session]
            else:
                self.sessions[session].commit()
        while len(self._to_verifier) > late:
            message = self._to_verifier.popleft()
            self._allowance.parse(message.ByteSize())
            self._allowance.read(bulk_of(message))
            self._allowance.heard(draft_response_events(message))


class Phase(NamedTuple):
    """Steps that are alike."""

    steps: int
    pieces: list[tuple[int, int]]
    rests: bool
    behind: int
    late: int
    closes: bool
    """Then a session ends, and answers may be in flight."""


def phases(steps: int, pieces: int) -> st.SearchStrategy[Phase]:
    many = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=pieces)
    held = st.integers(0, 20) | st.integers(0, 600)
    return st.builds(Phase, st.integers(1, steps), many, st.booleans(), st.integers(0, 20), held, st.booleans())


@settings(deadline=None)
@given(st.lists(phases(3, 80) | phases(200, 1), min_size=1, max_size=4), st.integers(1, 3))
@example([Phase(200, [], True, 0, 200, False), Phase(1, [], True, 0, 0, False)], 1)
@example([Phase(40, [(64, 64)], True, 0, 40 - n, False) for n in range(0, 40, 10)], 1)
@example([Phase(9, [], True, 0, 60, True), Phase(20, [], True, 0, 60, True), Phase(1, [], True, 0, 0, False)], 3)
def test_an_honest_drafter_never_uses_up_what_it_is_allowed(drawn: list[Phase], sessions: int) -> None:
    """Every grow in a message of its own, as many grows as there can be, held up on either way; sessions end amid it."""
    drafter = HonestDrafter(sessions)
    for phase in drawn:
        for _ in range(phase.steps):
            drafter.say(phase.pieces, rests=phase.rests)
            drafter.step()
            drafter.deliver(phase.behind, phase.late)
        if phase.closes and len(drafter.commits) > 1:
            drafter.close(min(drafter.commits))
    drafter.deliver(0, 0)


def told_of(sizes: Iterable[int]) -> list[Grow]:
    """The grows in which a verifier hears of pieces of these sizes, which come one by one between two commits."""
    unsent, told, first = UnsentGrows(), list[Grow](), 1
    for size in sizes:
        ids = range(first, first + size)
        first += size
        unsent.add(Grow(0, ids, ids, (0,) * size, (0.0,) * size))
        told += unsent.take(0, False, 0.0, 0.0, whole=False)
    return [*told, *unsent.take(0, True, 0.0, 0.0, whole=False)]


@given(st.lists(st.integers(1, 100), max_size=300))
def test_behind_one_event_a_drafter_tells_of_a_session_in_few_grows(sizes: list[int]) -> None:
    told = told_of(sizes)
    assert len(told) <= MAX_GROWS
    assert [node for grow in told for node in grow.ids] == list(range(1, sum(sizes) + 1)), "and of all that it made"
    assert told[-1].resting


def test_the_largest_tree_that_may_be_asked_for_is_told_of_in_few_grows_node_by_node() -> None:
    assert len(told_of([1] * 2 * LARGEST_TREE)) <= MAX_GROWS
    assert [len(grow.ids) for grow in told_of([10] * 54)] == [*[10] * 24, 120, 180, 0], "the worked example"
