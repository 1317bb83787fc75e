"""Quotas by client: pure, and over real gRPC with tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.cli.tokens import write
from specsplit.client import AsyncClient
from specsplit.clock import ManualClock
from specsplit.errors import Exhausted, InvalidRequest
from specsplit.identity import CallerRole
from specsplit.observe.metric_table import CLIENT_REQUESTS, CLIENT_TOKENS
from specsplit.rpc import Coordinators
from specsplit.settings import TransportSettings
from specsplit_coordinator.requests.fair_queue import QueueOwner
from specsplit_coordinator.requests.quotas import Quota, Quotas
from tests.support.effort import Effort
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]


def test_as_many_requests_as_a_client_may_have_and_no_more() -> None:
    quotas = Quotas(Quota(requests=2), ManualClock(), 1.5)
    with quotas.request("alice", 1), quotas.request("bob", 2):
        with quotas.request("alice", 1):
            with pytest.raises(
                Exhausted, match=r"client alice .* client_max_requests = 2; try again in 1\.5 s"
            ) as caught:
                quotas.request("alice", 1).__enter__()
            assert caught.value.retry_after_s == 1.5
        with quotas.request("alice", 1):
            pass
    with pytest.raises(Exhausted, match="client_max_requests = 2"), quotas.request("carol", 3):
        pass


def test_a_minutes_tokens_come_back_in_a_minute_and_the_hint_is_true() -> None:
    clock = ManualClock()
    quotas = Quotas(Quota(tokens_per_minute=60), clock, 1.0)
    with quotas.request("alice", 1) as use:
        use(90)
    with pytest.raises(Exhausted, match="client_tokens_per_minute = 60; try again in 31 s") as caught:
        quotas.request("alice", 1).__enter__()
    with quotas.request("bob", 1):
        pass
    assert caught.value.retry_after_s is not None
    clock.advance(caught.value.retry_after_s - 1.5)
    with pytest.raises(Exhausted):
        quotas.request("alice", 1).__enter__()
    clock.advance(1.5)
    with quotas.request("alice", 1):
        pass


@given(st.integers(1, 600), st.lists(st.tuples(st.integers(0, 300), st.floats(0, 20)), max_size=30))
def test_over_any_time_a_client_uses_no_more_than_two_minutes_worth_and_its_last_request(
    rate: int, steps: list[tuple[int, float]]
) -> None:
    clock, used, passed = ManualClock(), 0, 0.0
    quotas = Quotas(Quota(tokens_per_minute=rate), clock, 1.0)
    for tokens, then_s in steps:
        try:
            with quotas.request("alice", 1) as use:
                use(tokens)
            assert used < rate + passed * rate / 60 + 1e-6
            used += tokens
        except Exhausted:
            pass
        clock.advance(then_s)
        passed += then_s


def test_purses_that_are_full_are_forgotten() -> None:
    clock = ManualClock()
    quotas = Quotas(Quota(tokens_per_minute=60), clock, 1.0)
    for number in range(50):
        with quotas.request(f"client {number}", 1) as use:
            use(10)
    clock.advance(60)
    with quotas.request("alice", 1):
        pass
    assert [*vars(quotas)["_buckets"]] == ["alice"]


@pytest.mark.parametrize("tokens", [1, 0])
def test_a_delta_costs_as_much_work_with_many_clients_as_with_few(tokens: int) -> None:
    def effort(others: int) -> int:
        quotas, counted = Quotas(Quota(tokens_per_minute=60), ManualClock(), 1.0), Effort()
        for number in range(others):
            with quotas.request(f"client {number}", 1) as use:
                use(10)
        with quotas.request("alice", 1) as use, counted.counted():
            use(tokens)
        return counted.lines

    assert effort(200) == effort(2)


class Known:
    """A cluster that knows alice and the flooder by their tokens."""

    def __init__(self, cluster: Cluster, folder: Path, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self._folder = folder
        self._stack = stack

    async def queued(self, count: int) -> None:
        """Return once so many wait."""
        await eventually(lambda: self.cluster.coordinator.admission.queued >= count)

    async def client(self, name: str) -> AsyncClient:
        shown = TransportSettings(token_file=self._folder / "clients" / f"{name}.token")
        return await self._stack.enter_async_context(AsyncClient(self.cluster.address, shown))


@pytest.fixture
async def known(start_cluster: StartCluster, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts such a cluster, with a verifier for one session whose answers do not end."""
    client, member = CallerRole.CLIENT, CallerRole.MEMBER
    write(tmp_path, {"alice": client, "flood": client, "member": member})
    as_member = TransportSettings(token_file=tmp_path / "members/member.token")
    monkeypatch.setattr("tests.coordinator.conftest.Coordinators", partial(Coordinators, settings=as_member))
    async with AsyncExitStack() as stack:

        async def start(then_wait: bool = True, **settings: Any) -> Known:
            cluster = await start_cluster(tokens_file=tmp_path / "members/tokens.toml", **settings)
            await cluster.add_verifier(say((5, 6, 7), then_wait=then_wait), "v1", max_sessions=1)
            return Known(cluster, tmp_path, stack)

        yield start


async def flooded(known: Known, flood: AsyncClient, requests: int) -> list[asyncio.Task[Any]]:
    """So many requests of the flooder: the first runs, the others wait."""
    tasks = [asyncio.create_task(flood.generate("x"))]
    await eventually(lambda: known.cluster.coordinator.admission.running)
    tasks += [asyncio.create_task(flood.generate("x")) for _ in range(requests - 1)]
    await known.queued(requests - 1)
    return tasks


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_client_that_fills_the_queue_starves_no_other(known: Callable[..., Any]) -> None:
    cluster: Known = await known(max_queue=8)
    flood, alice = await cluster.client("flood"), await cluster.client("alice")
    tasks = await flooded(cluster, flood, 9)
    with pytest.raises(Exhausted, match="which is all there is room for"):
        await flood.generate("x")
    asked = alice.stream("x")
    waiting = asyncio.create_task(anext(asked))
    done, _ = await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    (crowded_out,) = done
    with pytest.raises(Exhausted, match="most of it is of this client"):
        crowded_out.result()
    tasks[0].cancel()  # its place goes to alice, although seven of the flooder's came before
    await asyncio.wait_for(waiting, 60)
    await asked.aclose()
    await end(tasks)


async def test_a_client_may_not_wait_with_more_than_its_quota(known: Callable[..., Any]) -> None:
    cluster: Known = await known(client_max_queued=2)
    flood = await cluster.client("flood")
    tasks = await flooded(cluster, flood, 3)
    with pytest.raises(
        Exhausted, match="client flood would have 3 requests waiting, and its quota is client_max_queued = 2"
    ):
        await flood.generate("x")
    await end(tasks)


async def test_a_client_may_not_have_more_on_their_way_than_its_quota(known: Callable[..., Any]) -> None:
    cluster: Known = await known(client_max_requests=2)
    flood = await cluster.client("flood")
    tasks = await flooded(cluster, flood, 2)
    with pytest.raises(Exhausted, match="client_max_requests = 2") as caught:
        await flood.generate("x")
    assert caught.value.retry_after_s == 1.0
    await end(tasks)


async def test_prompt_and_answer_count_as_tokens_of_the_client(known: Callable[..., Any]) -> None:
    cluster: Known = await known(
        then_wait=False, client_tokens_per_minute=3, metrics_listen="127.0.0.1:0", metrics_clients="alice"
    )
    alice, flood = await cluster.client("alice"), await cluster.client("flood")
    result = await alice.generate("x")
    assert result.usage.prompt_tokens + result.usage.completion_tokens > 3
    with pytest.raises(Exhausted, match="client alice has used up its tokens") as caught:
        await alice.generate("x")
    assert caught.value.retry_after_s and caught.value.retry_after_s > 1
    assert (await flood.generate("x")).tokens == result.tokens
    counted = cluster.cluster.coordinator.metrics.instruments
    used = result.usage.prompt_tokens + result.usage.completion_tokens
    assert counted.counter(CLIENT_TOKENS, "alice").value == used
    assert counted.counter(CLIENT_REQUESTS, "alice").value == 2, "one of them was refused"
    assert counted.counter(CLIENT_TOKENS, "other").value == used


async def test_the_higher_priority_is_served_first_and_no_higher_one_than_is_allowed(known: Callable[..., Any]) -> None:
    cluster: Known = await known(max_priority=3)
    alice = await cluster.client("alice")
    first = await flooded(cluster, alice, 1)
    served: list[int] = []

    async def ask(priority: int) -> None:
        async for _ in alice.stream("x", priority=priority):
            served.append(priority)
            break

    waiting: list[asyncio.Task[Any]] = []
    for number, priority in enumerate((0, 1, 3), 1):
        waiting.append(asyncio.create_task(ask(priority)))
        await cluster.queued(number)
    with pytest.raises(
        InvalidRequest, match="priority: is 4, more than this coordinator allows; expected at most max_priority = 3"
    ):
        await alice.generate("x", priority=4)
    await end(first)
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert served == [3, 1, 0]


async def test_what_a_request_resumes_counts_as_tokens_of_the_client(known: Callable[..., Any]) -> None:
    cluster: Known = await known(then_wait=False, client_tokens_per_minute=40)
    alice = await cluster.client("alice")
    assert (await alice.generate("x", resume_from=(5,) * 50, max_tokens=52)).tokens
    with pytest.raises(Exhausted, match="client alice has used up its tokens"):
        await alice.generate("x")


async def test_a_request_that_streams_is_never_ended_to_make_room(known: Callable[..., Any]) -> None:
    cluster: Known = await known(max_queue=3)
    flood, alice = await cluster.client("flood"), await cluster.client("alice")
    async with aclosing(flood.stream("x", n=4)) as streaming:
        await anext(streaming)
        admission = cluster.cluster.coordinator.admission
        await cluster.queued(3)
        with pytest.raises(Exhausted, match="1 requests run and 3 wait, which is all there is room for"):
            await alice.generate("x")
        assert (admission.running, admission.queued) == (1, 3)


async def test_a_request_that_is_refused_ends_nobody_elses(known: Callable[..., Any]) -> None:
    cluster: Known = await known(max_queue=4, client_max_requests=2)
    flood, alice = await cluster.client("flood"), await cluster.client("alice")
    asked = asyncio.create_task(flood.generate("x", n=2))
    admission = cluster.cluster.coordinator.admission
    await cluster.queued(1)
    owners = [QueueOwner("other") for _ in range(3)]
    waiting = [asyncio.create_task(admission.acquire(owner=owner)) for owner in owners]
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        await alice.generate("x", max_tokens=512)
    with pytest.raises(InvalidRequest, match="resume_from: has 9 tokens, but the answer ends after 2 at most"):
        await alice.generate("x", max_tokens=2, resume_from=(5,) * 9)
    with pytest.raises(Exhausted, match="client_max_requests = 2"):
        await alice.generate("x", n=3)
    assert admission.queued == 4 and not any(task.done() for task in waiting)
    await end([asked, *waiting])


async def test_what_was_read_of_a_request_that_no_verifier_ever_had_is_not_counted(known: Callable[..., Any]) -> None:
    cluster: Known = await known(client_tokens_per_minute=20)
    tasks = await flooded(cluster, await cluster.client("flood"), 1)
    alice, admission = await cluster.client("alice"), cluster.cluster.coordinator.admission
    for _ in range(2):
        asked = asyncio.create_task(alice.generate("def main( " * 40))
        async with asyncio.timeout(30):
            while not admission.queued:
                assert not asked.done(), "its tokens are used up"
                await asyncio.sleep(0.01)
            await end([asked])
            await eventually(lambda: not admission.queued)
    await end(tasks)
