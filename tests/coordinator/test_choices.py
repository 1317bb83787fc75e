"""Several choices of one request: each is a session of its own, and together they are one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import Exhausted, InvalidRequest, SpecsplitError
from specsplit.generation.choices import all_of
from specsplit.requests import Delta, Done, choice_seed
from specsplit.sessions import DecodeEvent, DecodeRequest, Tokens
from specsplit.values import SpeculationStatistics
from tests.support.eventually import eventually

from .test_failing_verifiers import join_unreachable

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]


def test_the_seeds_of_choices_are_the_draws_of_splitmix64_behind_the_requests_own() -> None:
    assert [choice_seed(0, index) for index in range(4)] == [
        0,
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ], "as its authors' implementation prints them"


@given(st.integers(0, 2**64 - 1))
def test_the_seeds_of_choices_are_64_bits_and_no_two_are_alike(seed: int) -> None:
    seeds = [choice_seed(seed, index) for index in range(16)]
    assert seeds[0] == seed
    assert len({*seeds[1:]}) == 15 and all(0 <= each < 2**64 for each in seeds)


async def test_every_choice_is_a_session_with_a_seed_of_its_own_and_ends_by_itself(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5, 6), (7,)))
    events = [event async for event in cluster.client.stream("x", n=3, temperature=0.5, seed=9, logprobs=0)]
    seeds = [choice_seed(9, index) for index in range(3)]
    assert sorted(request.sampling.seed for request in verifier.asked) == sorted(seeds)
    assert {request.request_id for request in verifier.asked} == {"drawn"}
    for index in range(3):
        *deltas, done = [event for event in events if event.index == index]
        assert [token for delta in deltas if isinstance(delta, Delta) for token in delta.tokens] == [5, 6, 7]
        assert isinstance(done, Done)
        assert (done.seed, done.usage.completion_tokens, done.request_id) == (seeds[index], 3, "drawn")
    (logged,) = cluster.coordinator.requests.requests
    assert (logged.tokens, logged.speculation.steps, logged.state) == (9, 6, "stop")


async def test_a_choice_that_fails_ends_the_others_and_the_request(cluster: Cluster) -> None:
    async def one_fails(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        if request.sampling.seed == choice_seed(1, 2):
            raise SpecsplitError("choice 2 is broken")
        await asyncio.Event().wait()

    verifier = await cluster.add_verifier(one_fails)
    with pytest.raises(SpecsplitError, match="choice 2 is broken"):
        await cluster.client.generate("x", n=4, temperature=1.0, seed=1)
    await eventually(lambda: verifier.open == 0 and cluster.coordinator.admission.running == 0)


async def test_a_caller_that_leaves_ends_all_choices(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,), then_wait=True))
    async with aclosing(cluster.client.stream("x", n=3)) as stream:
        seen = {(await anext(stream)).index for _ in range(3)}
        assert seen == {0, 1, 2} and verifier.open == 3
        assert cluster.coordinator.admission.running == 3
    await eventually(lambda: verifier.open == 0 and cluster.coordinator.admission.running == 0)


async def test_choices_wait_for_places_like_requests_do(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,)), max_sessions=1)
    result = await cluster.client.generate("x", n=5)
    assert [choice.tokens for choice in result.choices] == [(5,)] * 5
    assert len(verifier.asked) == 5


async def test_a_request_counts_as_many_as_it_has_choices(start_cluster: StartCluster, say: Say) -> None:
    cluster = await start_cluster(max_queue=1)
    verifier = await cluster.add_verifier(say((5,)), max_sessions=2)
    assert len((await cluster.client.generate("x", n=3)).choices) == 3
    lease = await cluster.coordinator.admission.acquire()
    with pytest.raises(
        Exhausted, match="1 requests run and 0 wait, which is all there is room for beside one for 3 ch"
    ):
        await cluster.client.generate("x", n=3)
    lease.release()
    assert len(verifier.asked) == 3


async def test_more_choices_than_the_whole_cluster_has_places_for_are_no_matter_of_waiting(
    start_cluster: StartCluster, say: Say
) -> None:
    cluster = await start_cluster(max_queue=1)
    verifier = await cluster.add_verifier(say((5,)), max_sessions=2)
    with pytest.raises(InvalidRequest) as caught:
        await cluster.client.generate("x", n=4)
    problem = "is 4, but this cluster has 2 places for sessions and lets 1 more wait; ask for 3 choices at most"
    assert (caught.value.field, caught.value.problem) == ("n", problem)
    assert verifier.asked == []


async def test_more_choices_than_the_operator_allows_are_refused_with_the_setting(
    start_cluster: StartCluster, say: Say
) -> None:
    cluster = await start_cluster(max_n=2)
    verifier = await cluster.add_verifier(say((5,)))
    with pytest.raises(InvalidRequest) as caught:
        await cluster.client.generate("x", n=3)
    problem = "is 3, more than this coordinator allows; expected at most max_n = 2"
    assert (caught.value.field, caught.value.problem) == ("n", problem)
    assert verifier.asked == []
    assert len((await cluster.client.generate("x", n=2)).choices) == 2


async def test_a_choice_that_a_verifier_lets_down_goes_to_another(cluster: Cluster, say: Say) -> None:
    await join_unreachable(cluster)
    await cluster.add_verifier(say((5,)), "good", max_sessions=16)
    result = await cluster.client.generate("x", n=4)
    assert [choice.done.verifier for choice in result.choices] == ["good"] * 4


async def test_the_first_choice_that_fails_ends_the_others() -> None:
    ended = list[str]()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise Exhausted("enough")

    async def short() -> None:
        ended.append("short")

    with pytest.raises(Exhausted, match="enough"):
        await all_of([endless(), short(), failing()])
    assert ended == ["short", "endless"]


async def test_a_choice_that_is_cancelled_ends_the_others_too() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def endless() -> None:
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(all_of([endless(), cancelled()]), 10)
    ended = list[str]()

    async def noted() -> None:
        try:
            await endless()
        finally:
            ended.append("endless")

    both = asyncio.create_task(all_of([noted(), noted()]))
    await asyncio.sleep(0.01)
    both.cancel()
    await asyncio.wait({both})
    assert ended == ["endless"] * 2
