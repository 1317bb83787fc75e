"""The queue serves clients in turn, whatever they do."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from specsplit_coordinator.fair_queue import Claim, FairQueue

CLIENTS = ("flood", "a", "b")
claims = st.builds(Claim, st.sampled_from(CLIENTS), st.integers(0, 2))


@dataclass(eq=False)
class Item:
    number: int
    claim: Claim


def first(queue: FairQueue[Item]) -> Item:
    return next(iter(queue))


def test_the_worked_example() -> None:
    """Starts of flood: 0 1 2. Serving the first leaves time at 0, so that a starts at 0 and 1, and b at 0."""
    queue: FairQueue[str] = FairQueue()
    for name in ("f0", "f1", "f2"):
        queue.add(name, Claim("flood"))
    queue.serve("f0")
    queue.add("a0", Claim("a"))
    queue.add("a1", Claim("a"))
    queue.add("b0", Claim("b"))
    queue.add("urgent", Claim("a", 1))
    queue.add("again", Claim("flood"), ahead=True)
    assert [*queue] == ["again", "urgent", "a0", "b0", "f1", "a1", "f2"]


@given(st.lists(st.tuples(claims, st.booleans(), st.integers(0, 9))))
def test_everything_comes_out_once_and_a_client_keeps_its_order(steps: list[tuple[Claim, bool, int]]) -> None:
    queue, out = FairQueue[Item](), list[Item]()
    left: set[int] = set()
    for number, (claim, serves, which) in enumerate(steps):
        queue.add(Item(number, claim), claim)
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
    by_claim: dict[Claim, list[int]] = defaultdict(list)
    for item in out:
        by_claim[item.claim].append(item.number)
    assert all(numbers == sorted(numbers) for numbers in by_claim.values())


@given(st.lists(claims, min_size=1), st.lists(st.booleans()))
def test_nothing_of_a_higher_priority_waits_behind_what_is_served(added: list[Claim], serves: list[bool]) -> None:
    queue = FairQueue[Item]()
    for number, claim in enumerate(added):
        queue.add(Item(number, claim), claim)
        if number < len(serves) and serves[number]:
            item = first(queue)
            assert item.claim.priority == max(each.claim.priority for each in queue)
            queue.serve(item)


@given(st.integers(1, 40), st.integers(1, 40), st.lists(st.sampled_from(CLIENTS), max_size=60))
def test_while_two_clients_wait_neither_is_served_two_more_than_the_other(
    flood: int, few: int, arrivals: list[str]
) -> None:
    """Arrivals come one after each that is served."""
    queue = FairQueue[Item]()
    for number in range(flood):
        queue.add(Item(number, Claim("flood")), Claim("flood"))
    for number in range(few):
        queue.add(Item(number, Claim("a")), Claim("a"))
    served: Counter[str] = Counter()
    while queue.count("flood") and queue.count("a"):
        item = first(queue)
        queue.serve(item)
        served[item.claim.client] += 1
        assert abs(served["flood"] - served["a"]) <= 1
        if arrivals:
            queue.add(Item(-1, Claim(name := arrivals.pop())), Claim(name))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 4))
def test_who_has_most_gives_way_to_who_has_less_and_to_nobody_else(flood: int, own: int, places: int) -> None:
    queue = FairQueue[Item]()
    for number in range(flood):
        queue.add(Item(number, Claim("flood")), Claim("flood"))
    for number in range(own):
        queue.add(Item(number, Claim("a")), Claim("a"))
    victim = queue.crowding_out("a", places)
    assert (victim is not None) is (flood > own + places)
    if victim is not None:
        assert (victim.claim.client, victim.number) == ("flood", flood - 1), "the one that came last"


def test_who_is_served_just_now_comes_behind_one_that_had_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("f0", Claim("flood"))
    queue.serve("f0")
    queue.add("f1", Claim("flood"))
    queue.add("a0", Claim("a"))
    assert [*queue] == ["a0", "f1"]


def test_what_a_client_takes_back_puts_it_behind_nobody() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(50):
        queue.add(f"a{number}", Claim("a"))
    for number in range(50):
        queue.remove(f"a{number}")
    queue.add("a", Claim("a"))
    queue.add("b", Claim("b"))
    assert [*queue] == ["a", "b"]


def test_of_a_client_that_does_not_wait_no_more_is_remembered_than_that_it_was_served_just_now() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a", "b"):
        for number in range(100):
            queue.add(item := f"{name}{number}", Claim(name))
            queue.serve(item)
    (lane,) = vars(queue)["_lanes"].values()
    assert (lane.now, lane.ends) == (198, {"b": 199})
    assert not vars(queue)["_counts"]
