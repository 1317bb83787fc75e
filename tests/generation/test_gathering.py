"""Callers are woken in turn, a few in each round of the loop; while it is behind, at most once in a period."""

from __future__ import annotations

import asyncio

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


async def test_an_inbox_gives_all_that_came_before_its_reader_had_his_turn_and_its_error_last() -> None:
    told = Gathering(0.005)
    others = [Inbox[int](told) for _ in range(TOLD_IN_A_ROUND)]
    inbox = Inbox[int](told)
    reading = [asyncio.create_task(each.get()) for each in (*others, inbox)]
    await one_round()
    for each in (*others, inbox):
        each.put((1,))
    inbox.put((2, 3))
    assert await reading[-1] == [1, 2, 3]
    inbox.put((4,))
    inbox.end(ValueError("first"))
    inbox.end(ValueError("second"))
    assert await inbox.get() == [4]
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            await inbox.get()
    await asyncio.gather(*reading[:-1])
