"""Grows are queued and settled at two points of a step: what comes of them is what would have come of each by itself."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.draft_events import Close, FeaturesRead
from specsplit.errors import IllegalEvent, InvalidRequest
from specsplit.features import FeatureLayout, Features
from specsplit.records import DraftCounters
from specsplit.speculation import Commit, Grow, Mirror, Original
from specsplit.tree import TokenTree
from specsplit.values import Plan, Vocabulary
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.records.events import FromDrafter
from specsplit_verifier.records.feed import Feed, FeedLimits, Recipe
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits
from specsplit_verifier.sessions.wait_policy import PROBED, WaitPolicy
from tests.support.sessions import session_of
from tests.support.trees import NewNode, Seen, grow_nodes

VOCAB, MAX_NODES = 4, 24
LIMITS = TreeLimits(6, 3, 4)


def drafting(feed: Feed | None = None, counters: DraftCounters | None = None) -> DraftSession:
    mirror = Mirror(7, root_token=0, root_position=0, max_nodes=MAX_NODES, vocab_size=VOCAB)
    return DraftSession("drafter", mirror, WaitPolicy(), feed, counters)


def apply_grows(drafter: DraftSession) -> None:
    drafter.apply_grows(LIMITS, prefilling=False)


def test_a_draft_is_chosen_once_a_step_however_many_grows_come(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, chosen = drafting(), list[int]()
    best = Mirror._best  # pyright: ignore[reportPrivateUsage]

    def counted(self: Mirror, *limits: int) -> object:
        chosen.append(len(self))
        return best(self, *limits)

    monkeypatch.setattr(Mirror, "_best", counted)
    for number in range(1, 6):
        drafter.grow(Grow(0, (number,), (number - 1,), (1,), (-0.1,)), number * 0.01)
    apply_grows(drafter)
    assert drafter.take(0, 0, LIMITS).ids == [0, 1, 2, 3, 4]
    assert chosen == [0, 5], "what there was before any came, and what the step takes"


class Pair:
    """A drafter, and two verifiers that hear the same of it: one settles after every grow, the other where a step begins and ends."""

    def __init__(self) -> None:
        self.original = Original(7, 0, 0, MAX_NODES)
        self.counters = DraftCounters(), DraftCounters()
        self.eager, self.queued = (drafting(counters=each) for each in self.counters)
        self.grows: deque[Grow] = deque()
        self.commits: deque[Commit] = deque()
        self.now = 0.0

    def grow(self, data: st.DataObject) -> None:
        tree = self.original.tree
        nodes = (Seen(tree).root, *Seen(tree).nodes.values())
        free = [(node, token) for node in nodes for token in range(VOCAB) if token not in node.children]
        count = data.draw(st.integers(0, min(4, self.original.free_nodes, len(free))))
        chosen = data.draw(st.permutations(free))[:count] if count else []
        new = [NewNode(node.id, token, node.score - 0.5) for node, token in chosen]
        self.grows.append(grow_nodes(self.original, new, resting=data.draw(st.booleans())))

    def deliver(self) -> None:
        if self.grows:
            grow = self.grows.popleft()
            self.now += 1.0
            for drafter in (self.eager, self.queued):
                drafter.grow(grow, self.now)
            apply_grows(self.eager)

    def step(self, data: st.DataObject) -> None:
        apply_grows(self.queued)
        taken = [drafter.take(0, 0, LIMITS) for drafter in (self.eager, self.queued)]
        assert taken[0] == taken[1]
        draft = taken[0]
        for _ in range(data.draw(st.integers(0, 3))):
            self.deliver()
        picks = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(draft.ids), max_size=len(draft.ids)))
        path = draft.accept(picks)
        accepted = Accepted(path, picks[path[-1]])
        self.now += 1.0
        apply_grows(self.queued)
        self.check()
        first, second = (drafter.commit(draft, accepted, self.now) for drafter in (self.eager, self.queued))
        assert first == second
        assert first.commit is not None
        self.commits.append(first.commit)

    def check(self) -> None:
        """Both verifiers know the same of the drafter."""
        one, other = self.eager.mirror, self.queued.mirror
        assert Seen(one.tree).snapshot() == Seen(other.tree).snapshot()
        assert (one.resting, one.caught_up, one.acknowledged) == (other.resting, other.caught_up, other.acknowledged)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whether_grows_are_settled_one_by_one_or_together_nothing_differs(data: st.DataObject) -> None:
    pair = Pair()
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["grow", "grow", "step", "deliver", "commit"])):
            case "grow":
                pair.grow(data)
            case "step":
                pair.step(data)
            case "deliver":
                pair.deliver()
            case _:
                if pair.commits:
                    pair.original.commit(pair.commits.popleft())
    apply_grows(pair.queued)
    pair.check()
    assert pair.counters[0] == pair.counters[1]


def test_grows_between_the_same_two_commits_reach_the_mirror_as_one_and_it_rests_as_the_last_says() -> None:
    drafter = drafting()
    drafter.grow(Grow(0, (1,), (0,), (1,), (-0.1,), resting=True), 0.1)
    drafter.grow(Grow(0, (2, 3), (1, 2), (2, 3), (-0.2, -0.3)), 0.2)
    assert len(drafter.mirror) == 0 and drafter.grows_queued
    apply_grows(drafter)
    assert len(drafter.mirror) == 3 and not drafter.mirror.resting and not drafter.grows_queued


def test_what_is_queued_when_a_drafter_goes_is_counted_as_unverified() -> None:
    counters = DraftCounters()
    drafter = drafting(counters=counters)
    drafter.grow(Grow(0, (1,), (0,), (1,), (-0.1,)), 0.1)
    apply_grows(drafter)
    drafter.grow(Grow(0, (2, 3), (1, 2), (2, 3), (-0.2, -0.3)), 0.2)
    drafter.close()
    assert counters.unverified_nodes == 3


def test_a_bonus_that_a_step_had_taken_cuts_off_nothing() -> None:
    drafter = drafting()
    drafter.grow(Grow(0, (1, 2), (0, 1), (1, 2), (-0.1, -0.1)), 0.1)
    apply_grows(drafter)
    draft = drafter.take(0, 0, LIMITS)
    path = draft.accept([1, None, None])
    assert path == [0], "the node behind which there is no pick is the bonus"
    reroot = drafter.commit(draft, Accepted(path, bonus=1), now=1.0)
    assert (reroot.hit, reroot.cut, len(drafter.mirror)) == (True, 0, 1)


def test_the_last_token_of_a_session_waits_for_no_drafts() -> None:
    drafter, plan, serial = drafting(), Plan(), Plan(draft_ahead=False)
    drafter.begin(0, 1.0)
    assert drafter.pause(1.0, serial, LIMITS) == pytest.approx(serial.wait_budget_us * 1e-6)
    assert drafter.pause(1.0, plan, LIMITS) == 0.0
    assert drafter.prospect(1.0, plan, LIMITS) is not None
    last = LIMITS._replace(num_steps=0)
    assert drafter.pause(1.0, serial, last) == 0.0 and drafter.prospect(1.0, plan, last) is None


def test_a_round_trip_ends_when_the_grow_comes_and_not_when_it_is_settled() -> None:
    counters = DraftCounters()
    drafter = drafting(counters=counters)
    drafter.commit(drafter.take(0, 0, LIMITS), Accepted([0], bonus=1), now=1.0)
    drafter.grow(Grow(1, (1,), (0,), (1,), (-0.1,)), 1.25)
    apply_grows(drafter)
    assert counters.round_trips_s == [0.25]


class World:
    """A pool, and two sessions at one drafter."""

    def __init__(self) -> None:
        self.pool = DrafterPool(Vocabulary(VOCAB), MAX_NODES)
        self.running: dict[int, Session] = {}
        for number in (1, 2):
            self.running[number] = session_of(number)
            self.running[number].drafter = drafting()

    def receive(self, *events: tuple[int, Grow | FeaturesRead]) -> list[tuple[str, int, object]]:
        self.pool.received(FromDrafter("drafter", events), self.running, 0.5)
        return list(self.pool.outgoing())

    def apply_grows(self) -> list[tuple[str, int, object]]:
        self.pool.apply_grows(self.running.values())
        return list(self.pool.outgoing())


GOOD = Grow(0, (1,), (0,), (1,), (-0.1,))
BROKEN = Grow(0, (1,), (0,), (VOCAB,), (-0.1,))


def test_who_breaks_the_protocol_is_given_up_where_grows_are_settled_and_for_its_own_session_only() -> None:
    world = World()
    assert world.receive((1, BROKEN), (2, GOOD)) == []
    assert world.apply_grows() == [("drafter", 1, Close())]
    assert not world.running[1].drafter.attached
    drafter = world.running[2].drafter
    assert isinstance(drafter, DraftSession) and drafter.untaken == 1
    assert world.apply_grows() == []


def test_more_than_a_tree_can_hold_is_not_queued() -> None:
    world, sends = World(), list[object]()
    for first in range(1, 3 * MAX_NODES, 3):
        ids = range(first, first + 3)
        sends += world.receive((1, Grow(0, ids, [each - 1 for each in ids], (1, 1, 1), (-0.1, -0.1, -0.1))))
    assert sends == [("drafter", 1, Close())], "no settling was needed to find out"


def test_more_new_edges_than_a_tree_can_have_nodes_are_not_queued() -> None:
    world = World()
    ids = tuple(range(1, MAX_NODES + 2))
    everything, too_many = (Grow(0, rescored=some, new_edges=(-0.1,) * len(some)) for some in (ids[:-1], ids))
    assert world.receive((1, too_many), (2, everything)) == [("drafter", 1, Close())], (
        "no settling was needed to find out"
    )
    with pytest.raises(InvalidRequest, match=r"grow\.rescored_ids: has 25, expected at most 24"):
        drafting().grow(too_many, 0.1)


def test_what_a_drafter_says_of_features_is_taken_in_behind_what_it_had_grown() -> None:
    feed = Feed(Recipe((1,), "", FeatureLayout(2)), 0, FeedLimits(2, 100, 10_000))
    feed.add(Features(0, 5, bytes(5 * 8)))
    world = World()
    drafter = world.running[1].drafter = drafting(feed)
    drafter.begin(5, 0.0)
    drafter.mirror.mark_busy()
    sends = world.receive((1, Grow(0, resting=True)), (1, FeaturesRead(2)))
    assert len(sends) == 1 and isinstance(sends[0][2], Features)
    assert world.apply_grows() == []
    assert not drafter.mirror.resting, "it was sent what it lacked after it had said that it rests"


def test_of_most_first_grows_in_flight_only_the_time_is_learnt_and_a_probe_is_looked_at_when_it_comes() -> None:
    drafter = drafting()
    seen: list[bool] = []
    for number in range(1, 2 * PROBED + 1):
        drafter.commit(drafter.take(0, 0, LIMITS), Accepted([0], bonus=0), float(number))
        drafter.grow(Grow(number, (number,), (0,), (1,), (-0.1,)), number + 0.1)
        seen.append(drafter.urgent)
        apply_grows(drafter)
        assert not drafter.urgent
    assert seen.count(True) == 2


def test_a_grow_out_of_order_is_refused_behind_those_in_order() -> None:
    drafter = drafting()
    drafter.grow(GOOD, 0.1)
    drafter.grow(Grow(1, (2,), (1,), (1,), (-0.2,)), 0.2)
    with pytest.raises(IllegalEvent, match="commits"):
        apply_grows(drafter)
    assert len(drafter.mirror) == 1


def test_the_best_of_a_tree_is_looked_up_no_more_often_for_more_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    best = TokenTree.best
    monkeypatch.setattr(TokenTree, "best", lambda tree, *wish: looked.append(1) or best(tree, *wish))

    def lookups(grows: int) -> int:
        mirror = Mirror(7, root_token=0, root_position=0, max_nodes=100, vocab_size=100)
        drafter = DraftSession("drafter", mirror, WaitPolicy())
        looked.clear()
        for i in range(1, 1 + grows):
            drafter.grow(Grow(0, [i], [0], [i], [-1.0]), float(i))
        apply_grows(drafter)
        drafter.take(0, 0, LIMITS)
        return len(looked)

    assert lookups(30) == lookups(1) <= 3
