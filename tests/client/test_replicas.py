"""Clients of several coordinators: a stream that breaks goes on at another, with no token and no text lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.client import AsyncClient, Client, make_request
from specsplit.client.replicas import Replicas
from specsplit.client.result import Gatherer, Result
from specsplit.client.resuming import PAUSES_S, Resuming
from specsplit.client.until import Until
from specsplit.clock import ManualClock
from specsplit.errors import Incompatible, InvalidRequest, TargetFailed, Unavailable
from specsplit.requests import Delta, GenerateEvent, GenerateRequest
from specsplit.values import PlanChanges
from tests.client.scripted import DONE, Scripted, serving

PIECES = ("o", "ne", "", "", " two", "", " three")
"""Text that becomes final with each token; where it is empty a character or a stop string may yet come of it."""
TOKENS = tuple(range(11, 11 + len(PIECES)))
HELD = " and"
"""Text that was held back until the end."""
WHOLE = "".join(PIECES) + HELD


def answer(resumed: Sequence[int] = (), sizes: Sequence[int] = (1,) * len(PIECES)) -> Iterator[GenerateEvent]:
    """What a coordinator streams behind the tokens that are there, in deltas of these sizes."""
    begin = len(resumed)
    assert tuple(resumed) == TOKENS[:begin]
    for end in accumulate(sizes, initial=begin):
        if end > begin:
            yield Delta("".join(PIECES[begin:end]), TOKENS[begin:end])
            begin = min(end, len(TOKENS))
    if begin < len(TOKENS):
        yield Delta("".join(PIECES[begin:]), TOKENS[begin:])
    yield Delta(HELD, ())
    yield DONE


Breaks = Iterator[int]


def breaking(breaks: Breaks) -> Callable[[GenerateRequest], Iterator[GenerateEvent]]:
    """Streams as many events as the next of `breaks` says, and then breaks; all of them once there is none left."""

    def script(request: GenerateRequest) -> Iterator[GenerateEvent]:
        left = next(breaks, None)
        for number, event in enumerate(answer(request.resume_from)):
            if number == left:
                raise Unavailable("the coordinator is leaving")
            yield event

    return script


@pytest.fixture
def pair() -> Iterator[tuple[Scripted, Scripted]]:
    with ExitStack() as stack:
        yield stack.enter_context(serving()), stack.enter_context(serving())


def both(pair: Iterable[Scripted]) -> str:
    return ",".join(each.address for each in pair)


def pieces_of(result: Result) -> tuple[str, tuple[int, ...]]:
    return result.text, result.tokens


@given(st.lists(st.tuples(st.lists(st.integers(1, 3), max_size=7), st.integers(0, 9)), max_size=4))
def test_wherever_streams_break_and_however_tokens_are_grouped_the_whole_is_that_of_one_stream(
    streams: list[tuple[list[int], int]],
) -> None:
    resuming, gatherer = Resuming(make_request("x"), elsewhere=True), Gatherer()
    for sizes, length in [*streams, ([], 99)]:
        events = list(answer(resuming.rest.resume_from, sizes))
        for event in events[:length]:
            gatherer.add(resuming.add(event))
        if length >= len(events):
            break
        resuming.after(Unavailable("gone"))
    assert pieces_of(gatherer.result()) == (WHOLE, TOKENS)


@pytest.mark.parametrize("asynchronously", [False, True])
def test_a_stream_that_breaks_goes_on_at_another_coordinator(
    pair: tuple[Scripted, Scripted], asynchronously: bool
) -> None:
    breaks = iter([3, 0, 2, 0, 4])
    for each in pair:
        each.script = breaking(breaks)

    async def generate() -> Result:
        async with AsyncClient(both(pair)) as client:
            return await client.generate("x")

    if asynchronously:
        result = asyncio.run(generate())
    else:
        with Client(both(pair)) as client:
            result = client.generate("x")
    assert pieces_of(result) == (WHOLE, TOKENS)
    assert sum(len(each.asked) for each in pair) == 6
    assert all(each.asked for each in pair)


def test_a_seed_is_drawn_by_a_client_that_may_have_to_go_on_elsewhere_and_by_no_other(
    pair: tuple[Scripted, Scripted],
) -> None:
    breaks = iter([3])
    for each in pair:
        each.script = breaking(breaks)
    with Client(both(pair)) as client:
        client.generate("x", temperature=1.0)
        client.generate("x")
    first, second, greedy = sorted(
        (asked for each in pair for asked in each.asked), key=lambda asked: (not asked.seeded, len(asked.resume_from))
    )
    assert first.seeded and second == replace(first, resume_from=TOKENS[:3]) and not greedy.seeded
    with Client(pair[0].address) as alone:
        alone.generate("x", temperature=1.0)
    assert not pair[0].asked[-1].seeded


def test_who_is_gone_is_passed_over_and_calls_go_to_each_in_turn(pair: tuple[Scripted, Scripted]) -> None:
    with Client(both(pair)) as client:
        for _ in range(4):
            client.generate("x")
        assert [len(each.asked) for each in pair] == [2, 2]
    with Client(f"127.0.0.1:1,{pair[0].address}") as client:
        client.wait_until_serving(10)
        for _ in range(3):
            assert client.generate("x").done == DONE
            assert client.model_info() == pair[0].model
            assert client.cluster().members == pair[0].members


def test_an_order_is_told_to_every_coordinator_that_is_there(pair: tuple[Scripted, Scripted]) -> None:
    with Client(f"{both(pair)},127.0.0.1:1") as client:
        told = client.set_plan(PlanChanges(topk=3))
    assert told.changes == PlanChanges(topk=3)
    assert all(len(each.ordered) == 1 for each in pair)
    with Client("127.0.0.1:1,127.0.0.1:2") as client, pytest.raises(Unavailable, match=r"coordinator 127\.0\.0\.1:2"):
        client.set_plan(PlanChanges(topk=3))


async def test_an_async_client_does_the_same(pair: tuple[Scripted, Scripted]) -> None:
    async with AsyncClient(f"127.0.0.1:1,{both(pair)}") as client:
        await client.wait_until_serving(10)
        await client.set_plan(PlanChanges(topk=3))
        assert all(len(each.ordered) == 1 for each in pair)
        for _ in range(3):
            assert await client.model_info() == pair[0].model
            assert (await client.generate("x")).done == DONE


def test_every_address_of_a_name_is_one_channel(pair: tuple[Scripted, Scripted]) -> None:
    port = pair[0].address.rpartition(":")[2]
    with Client(f"dns:///127.0.0.1:{port}") as client:
        pair[0].script = breaking(iter([3, 2]))
        assert pieces_of(client.generate("x")) == (WHOLE, TOKENS)


def failing(sampled: bool = False, n: int = 1) -> Resuming:
    return Resuming(make_request("x", temperature=float(sampled), n=n), elsewhere=True)


def test_tries_in_a_row_without_a_token_are_bounded_and_one_that_brings_a_token_counts_anew() -> None:
    resuming, error = failing(sampled=True), Unavailable("gone")
    for _ in range(2):
        assert tuple(resuming.after(error) for _ in PAUSES_S) == PAUSES_S
        resuming.add(Delta("a", (5,)))
    for _ in PAUSES_S:
        resuming.after(error)
    with pytest.raises(Unavailable, match=r"^gone; 2 tokens of the answer had come, with seed \d+: the same") as told:
        resuming.after(error)
    assert told.value.received == (5, 5)


def test_of_several_choices_none_goes_on_once_something_has_come() -> None:
    resuming = failing(n=2)
    resuming.after(Unavailable("gone"))
    resuming.add(Delta("a", (5,), index=1))
    with pytest.raises(Unavailable, match=r"^gone$"):
        resuming.after(Unavailable("gone"))


def test_what_fails_everywhere_is_not_tried_elsewhere() -> None:
    with pytest.raises(Unavailable, match="it cannot"):
        failing().after(TargetFailed("it cannot"))
    with pytest.raises(Unavailable, match="gone"):
        Resuming(make_request("x"), elsewhere=False).after(Unavailable("gone"))


def test_another_text_than_the_one_that_came_is_no_rest_of_it() -> None:
    resuming = failing()
    for event in (Delta("one", (11,)), Delta(" an", ())):
        resuming.add(event)
    resuming.after(Unavailable("gone"))
    with pytest.raises(Incompatible, match="wrote ' other' in the place of ' an'"):
        resuming.add(Delta(" other", ()))


def test_one_that_has_failed_is_the_last_choice_for_a_while() -> None:
    clock = ManualClock()
    replicas = Replicas[str, str]("a:1,b:2,c:3", str, str, clock)
    failed = next(each for each in replicas if each.channel == "b:2")
    replicas.failed(failed)
    for _ in range(3):
        assert replicas.in_turn()[-1] is failed
    clock.advance(6.0)
    assert {replicas.in_turn()[0].channel for _ in range(3)} == {"a:1", "b:2", "c:3"}


def test_the_time_of_a_request_is_that_of_all_its_calls() -> None:
    clock = ManualClock()
    until = Until(5.0, clock)
    clock.advance(4.0)
    assert (until.left_s, until.at_most(0.5), until.at_most(2.0)) == (1.0, 0.5, 1.0)
    clock.advance(4.0)
    assert until.left_s == 0.0
    assert (Until(None, clock).left_s, Until(None, clock).at_most(2.0)) == (None, 2.0)


@pytest.mark.parametrize("address", ["", "a:1,", "a:1,a:1", "dns:///a"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="address: "):
        Client(address)
