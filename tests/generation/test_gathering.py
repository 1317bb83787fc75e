"""Callers are woken in turn, a few in each round of the loop; while it is behind, at most once in a period."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from specsplit.generation import gathering
from specsplit.generation.gathering import TOLD_IN_A_ROUND, Gathering
from specsplit.generation.inbox import Inbox


class Waiting:
    """One who waits all the time, and notes when he is woken."""

    def __init__(self, log: list[Waiting]) -> None:
        self.queued, self.period, self._log = False, -1, log

    def wake(self) -> None:
        self._log.append(self)


async def one_round() -> None:
    await asyncio.sleep(0)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any turn at all that has to be waited for is a late one."""
    monkeypatch.setattr(gathering, "LATE_S", -1.0)


async def test_few_are_woken_at_once_and_many_in_turn() -> None:
    woken, told = list[Waiting](), Gathering(0.005)
    waiting = [Waiting(woken) for _ in range(2 * TOLD_IN_A_ROUND + 1)]
    for each in waiting[:TOLD_IN_A_ROUND]:
        told.came(each)
    assert woken == waiting[:TOLD_IN_A_ROUND]
    for each in waiting[TOLD_IN_A_ROUND:] * 2:
        told.came(each)
    assert len(woken) == TOLD_IN_A_ROUND
    await one_round()
    assert woken == waiting[: 2 * TOLD_IN_A_ROUND]
    await one_round()
    assert woken == waiting, "each of them once"
    await one_round()
    told.came(waiting[0])
    assert woken[-1] is waiting[0]


async def test_who_has_to_know_at_once_is_woken_out_of_turn_and_not_again_in_it() -> None:
    woken, told = list[Waiting](), Gathering(0.005)
    waiting = [Waiting(woken) for _ in range(TOLD_IN_A_ROUND + 3)]
    for each in waiting:
        told.came(each)
    told.came(waiting[-1], at_once=True)
    assert woken == [*waiting[:TOLD_IN_A_ROUND], waiting[-1]]
    await one_round()
    assert woken == [*waiting[:TOLD_IN_A_ROUND], waiting[-1], *waiting[-3:-1]]


async def fall_behind(told: Gathering, woken: list[Waiting]) -> Waiting:
    """Have more come than a round takes -> one who has been woken since."""
    waiting = [Waiting(woken) for _ in range(TOLD_IN_A_ROUND + 1)]
    for each in waiting:
        told.came(each)
    await one_round()
    return waiting[-1]


@pytest.mark.usefixtures("behind")
async def test_while_the_loop_is_behind_nobody_is_woken_twice_in_a_period_but_for_an_end() -> None:
    woken, told = list[Waiting](), Gathering(1000.0)
    latest = await fall_behind(told, woken)
    await one_round()
    before = len(woken)
    told.came(latest)
    told.came(latest)
    await one_round()
    assert len(woken) == before
    first = Waiting(woken)
    told.came(first)
    assert woken[-1] is first, "the first tokens of an answer do not wait"
    told.came(latest, at_once=True)
    assert woken[-1] is latest, "nor does its end"


@pytest.mark.usefixtures("behind")
async def test_a_period_ends_by_itself_and_then_the_loop_is_no_longer_behind() -> None:
    woken, told = list[Waiting](), Gathering(0.001)
    latest = await fall_behind(told, woken)
    told.came(latest)
    before = len(woken)
    async with asyncio.timeout(10):
        while len(woken) == before:
            await asyncio.sleep(0.001)
    assert woken[before:] == [latest]


@pytest.mark.usefixtures("behind")
async def test_with_no_time_to_gather_in_nobody_waits_for_more_than_his_turn() -> None:
    woken, told = list[Waiting](), Gathering(0.0)
    latest = await fall_behind(told, woken)
    await one_round()
    told.came(latest)
    assert woken[-1] is latest


class Reader:
    """Takes what comes, until it has so many."""

    def __init__(self, most: int = 99) -> None:
        self.taken: list[list[int]] = []
        self._most = most

    def take(self, events: Sequence[int]) -> bool:
        self.taken.append([*events])
        return sum(map(len, self.taken)) >= self._most


async def test_an_inbox_tells_all_that_came_before_its_turn_at_once_and_its_error_last() -> None:
    told, reader = Gathering(0.005), Reader()
    inbox = Inbox[int](told, reader.take)
    for each in [*(Inbox[int](told, Reader().take) for _ in range(TOLD_IN_A_ROUND)), inbox]:
        each.put((1,))
    inbox.put((2, 3))
    assert reader.taken == []
    await one_round()
    assert reader.taken == [[1, 2, 3]]
    inbox.put((4,))
    inbox.end(ValueError("first"))
    inbox.end(ValueError("second"))
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            await inbox.over()
    assert reader.taken == [[1, 2, 3], [4]]


async def test_an_inbox_that_is_left_tells_no_more_and_one_whose_reader_fails_ends_with_that() -> None:
    told, reader = Gathering(0.005), Reader(2)
    inbox = Inbox[int](told, reader.take)
    for number in range(4):
        inbox.put((number,))
    inbox.end(ValueError("too late"))
    await inbox.over()
    assert reader.taken == [[0], [1]]

    def fail(events: Sequence[int]) -> bool:
        raise KeyError(*events)

    failing = Inbox[int](told, fail)
    failing.put((1,))
    with pytest.raises(KeyError, match="1"):
        await failing.over()
    ended = Inbox[int](told, Reader().take)
    ended.end()
    await ended.over()
