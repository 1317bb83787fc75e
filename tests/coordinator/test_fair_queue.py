"""The queue serves clients in turn, whatever they do."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit_coordinator.requests.fair_queue import FairQueue, QueueOwner

CLIENTS = ("flood", "a", "b")
owners = st.builds(QueueOwner, st.sampled_from(CLIENTS), st.integers(0, 2))


@dataclass(eq=False)
class Item:
    number: int
    owner: QueueOwner


def first(queue: FairQueue[Item]) -> Item:
    return next(iter(queue))


@pytest.mark.parametrize(
    ("steps", "order"),
    [
        pytest.param(
            "+f0 +f1 +f2 !f0 +a0 +a1 +b0", "a0 b0 f1 a1 f2",
            id="the worked example: starts of f are 0, 1 and 2, of a 0 and 1, and of b 0; serving the first leaves time at 0",
        ),
        pytest.param("+f0 !f0 +f1 +a0", "a0 f1", id="who is served just now comes behind one that had nothing"),
        pytest.param(
            "+a0 +b0 +b1 +b2 +b3 +b4 !b0 !b1 !b2 !b3 !b4 +a1 +a2 +c0 -a0", "a1 c0 a2",
            id="what moves up does not begin before it came: b is served out of turn, time is at 4, starts are 4, 5 and 4",
        ),
        pytest.param(
            "+a0 +a1 +a2 !a1 !a2 !a0 +a3 +b0", "b0 a3",
            id="what is served before its turn counts as much as in its turn: the first had to wait for something of its own",
        ),
    ],
)  # fmt: skip
def test_who_comes_next(steps: str, order: str) -> None:
    """`+a0` comes, of client a; `!a0` is served; `-a0` is taken back."""
    queue: FairQueue[str] = FairQueue()
    for what, item in ((step[0], step[1:]) for step in steps.split()):
        if what == "+":
            queue.add(item, QueueOwner(item[0]))
        else:
            (queue.serve if what == "!" else queue.remove)(item)
    assert [*queue] == order.split()


def test_what_is_urgent_goes_ahead_and_what_was_let_down_ahead_of_that() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("first", QueueOwner("a"))
    queue.add("urgent", QueueOwner("a", 1))
    queue.add("again", QueueOwner("flood"), ahead=True)
    assert [*queue] == ["again", "urgent", "first"]


@given(st.lists(st.tuples(owners, st.booleans(), st.integers(0, 9))))
def test_everything_comes_out_once_and_a_client_keeps_its_order(steps: list[tuple[QueueOwner, bool, int]]) -> None:
    queue, out = FairQueue[Item](), list[Item]()
    left: set[int] = set()
    for number, (owner, serves, which) in enumerate(steps):
        queue.add(Item(number, owner), owner)
        waiting = [*queue]
        if serves:
            item = first(queue)
            queue.serve(item)
            out.append(item)
        elif which == 0:
            queue.remove(gone := waiting[-1])
            left.add(gone.number)
        assert sum(queue.count(client) for client in CLIENTS) == len(queue)
    while len(queue):
        out.append(first(queue))
        queue.serve(out[-1])
    assert sorted([item.number for item in out] + [*left]) == [*range(len(steps))]
    by_flow: dict[tuple[int, str], list[int]] = defaultdict(list)
    for item in out:
        by_flow[item.owner.flow].append(item.number)
    assert all(numbers == sorted(numbers) for numbers in by_flow.values())


@given(st.lists(owners, min_size=1), st.lists(st.booleans()))
def test_nothing_of_a_higher_priority_waits_behind_what_is_served(added: list[QueueOwner], serves: list[bool]) -> None:
    queue = FairQueue[Item]()
    for number, owner in enumerate(added):
        queue.add(Item(number, owner), owner)
        if number < len(serves) and serves[number]:
            item = first(queue)
            assert item.owner.priority == max(each.owner.priority for each in queue)
            queue.serve(item)


@given(st.integers(1, 40), st.integers(1, 40), st.lists(st.sampled_from(CLIENTS), max_size=60))
def test_while_two_clients_wait_neither_is_served_two_more_than_the_other(
    flood: int, few: int, arrivals: list[str]
) -> None:
    """Arrivals come one after each that is served."""
    queue = FairQueue[Item]()
    for number in range(flood):
        queue.add(Item(number, QueueOwner("flood")), QueueOwner("flood"))
    for number in range(few):
        queue.add(Item(number, QueueOwner("a")), QueueOwner("a"))
    served: Counter[str] = Counter()
    while queue.count("flood") and queue.count("a"):
        item = first(queue)
        queue.serve(item)
        served[item.owner.client] += 1
        assert abs(served["flood"] - served["a"]) <= 1
        if arrivals:
            queue.add(Item(-1, QueueOwner(name := arrivals.pop())), QueueOwner(name))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 4))
def test_who_has_most_gives_way_to_who_has_less_and_to_nobody_else(flood: int, own: int, places: int) -> None:
    queue = FairQueue[Item]()
    for client, count in (("flood", flood), ("a", own)):
        for number in range(count):
            queue.add(Item(number, owner := QueueOwner(client)), owner)
    waiting = [*queue]
    victims = queue.victims_for("a", own + places, 1)
    assert bool(victims) is (flood > own + places)
    if victims:
        (number,) = [item.number for item in waiting if item.owner in victims]
        assert (victims[0].client, number) == ("flood", flood - 1), "the one that came last"


requests = st.lists(st.tuples(owners, st.integers(1, 4), st.booleans()), max_size=12)


@given(requests, st.integers(1, 8), st.integers(1, 12))
def test_requests_give_way_as_a_whole_and_not_once_they_have_begun_and_no_more_of_them_than_must(
    asked: list[tuple[QueueOwner, int, bool]], places: int, wanted: int
) -> None:
    queue = FairQueue[Item]()
    for number, (owner, choices, _) in enumerate(asked):
        for _ in range(choices):
            queue.add(Item(number, owner), owner)
    for number, (_, _, begun) in enumerate(asked):
        if begun:
            queue.serve(next(item for item in queue if item.number == number))
    before = [*queue]
    victims = queue.victims_for("a", places, wanted)
    assert [*queue] == before, "it is a question"
    counts, freed = Counter(item.owner.client for item in before), [0]
    for victim in victims:
        assert victim.client != "a" and not victim.begun
        able = {item.owner.client for item in before if not item.owner.begun and item.owner not in victims}
        assert counts[victim.client] > places
        assert all(counts[victim.client] >= counts[other] for other in able - {"a"}), "of who has most"
        size = sum(item.owner is victim for item in before)
        counts[victim.client] -= size
        freed.append(freed[-1] + size)
    if victims:
        assert freed[-1] >= wanted > freed[-2]
    able = {item.owner.client for item in before if not item.owner.begun} - {"a"}
    assert bool(queue.victims_for("a", places, 1)) is any(queue.count(client) > places for client in able)


@given(st.lists(st.tuples(owners, st.booleans(), st.integers(0, 3), st.integers(0, 9))))
def test_who_takes_something_back_comes_when_he_would_have_come_if_he_had_never_asked_for_it(
    steps: list[tuple[QueueOwner, bool, int, int]],
) -> None:
    """The one queue has what is taken back, for a while; the other never has it."""
    queue, other, doomed = FairQueue[Item](), FairQueue[Item](), list[Item]()
    for number, (owner, stays, then, which) in enumerate(steps):
        queue.add(item := Item(number, owner), owner)
        if stays:
            other.add(item, owner)
        else:
            doomed.append(item)
        if then == 1 and doomed:
            queue.remove(doomed.pop(which % len(doomed)))
        if then == 2 and len(other) and first(queue) is first(other):
            served = first(queue)
            queue.serve(served)
            other.serve(served)
    for item in reversed(doomed):
        queue.remove(item)
    assert [*queue] == [*other]


@given(st.integers(1, 40), st.integers(1, 40), st.lists(st.integers(0, 99), max_size=60))
def test_whatever_two_clients_take_back_neither_is_served_two_more_than_the_other_while_both_wait(
    flood: int, few: int, taken_back: list[int]
) -> None:
    queue = FairQueue[Item]()
    for client, count in (("flood", flood), ("a", few)):
        for number in range(count):
            queue.add(Item(number, owner := QueueOwner(client)), owner)
    served: Counter[str] = Counter()
    while queue.count("flood") and queue.count("a"):
        item = first(queue)
        queue.serve(item)
        served[item.owner.client] += 1
        assert abs(served["flood"] - served["a"]) <= 1
        if taken_back and len(queue):
            waiting = [*queue]
            queue.remove(waiting[taken_back.pop() % len(waiting)])


def test_of_a_client_that_does_not_wait_no_more_is_kept_than_that_it_was_served_just_now() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a", "b"):
        for number in range(100):
            queue.add(item := f"{name}{number}", QueueOwner(name))
            queue.serve(item)
    (level,) = vars(queue)["_levels"].values()
    assert (level.now, level.finish_tags) == (198, {"b": 199})
    assert not vars(queue)["_counts"]
