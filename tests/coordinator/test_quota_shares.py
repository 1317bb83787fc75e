"""Quotas where there are several coordinators: each holds a client to its share."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.cli.tokens import write
from specsplit.client import AsyncClient
from specsplit.clock import ManualClock
from specsplit.errors import Exhausted
from specsplit.identity import CallerRole
from specsplit.membership import Heartbeat, Register
from specsplit.rpc import Coordinators
from specsplit.settings import TransportSettings
from specsplit.values import ModelInfo, Vocabulary
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.quotas import Quota, Quotas, share_of
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import StartCluster

BOUNDS = st.integers(0, 2**31 - 1)
MODEL = ModelInfo("toy", Vocabulary(50, "ab"), 512)


@given(BOUNDS, st.integers(1, 2048))
def test_shares_are_no_more_than_the_bound_and_never_nothing_of_something(bound: int, coordinators: int) -> None:
    share = share_of(bound, coordinators)
    assert share * coordinators <= max(bound, coordinators)
    assert min(1, bound) <= share <= bound
    assert share_of(bound, 1) == bound
    assert bound - share * coordinators < coordinators or not bound


@given(st.integers(1, 12), st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=40))
def test_all_coordinators_together_let_a_client_have_no_more_than_its_quota(
    bound: int, coordinators: int, asked: list[tuple[int, int]]
) -> None:
    each = [Quotas(Quota(bound), ManualClock(), 1.0, lambda: coordinators) for _ in range(coordinators)]
    held = 0
    with ExitStack() as requests:
        for number, places in asked:
            try:
                requests.enter_context(each[number % coordinators].request("alice", places))
            except Exhausted:
                continue
            held += places
            assert held <= max(bound, coordinators)


def test_a_refusal_says_what_the_share_is() -> None:
    quotas = Quotas(Quota(5, 3, 60), ManualClock(), 1.5, lambda: 2)
    says = r"client alice would have 3 requests on their way, and its quota is client_max_requests = 5, of which each of 2 coordinators "
    with pytest.raises(Exhausted, match=says + r"allows 2; try again in 1\.5 s"), quotas.request("alice", 3):
        pass
    with quotas.request("alice", 2) as use:
        with pytest.raises(Exhausted, match=r"client_max_queued = 3, of which each of 2 coordinators allows 1"):
            quotas.check_queued("alice", 2)
        use(30)
    with pytest.raises(Exhausted, match=r"client_tokens_per_minute = 60, of which .* allows 30; try again in 2 s"):
        quotas.request("alice", 1).__enter__()


def test_a_share_follows_the_number_of_coordinators() -> None:
    clock, there = ManualClock(), 1
    quotas = Quotas(Quota(4, None, 60), clock, 1.0, lambda: there)
    assert quotas.described() == ""
    with quotas.request("alice", 3):
        there = 2
        with pytest.raises(Exhausted, match="allows 2"):
            quotas.request("alice", 1).__enter__()
        there = 1
        with quotas.request("alice", 1) as use:
            use(60)
    there = 3
    assert quotas.described() == (
        "quotas of clients by shares, as one of 3 coordinators: client_max_requests 1 of 4, client_tokens_per_minute 20 of 60"
    )
    with pytest.raises(Exhausted, match="allows 20; try again in 3 s"):
        quotas.request("alice", 1).__enter__()
    clock.advance(3)
    with quotas.request("alice", 1):
        pass


def test_there_are_as_many_coordinators_as_a_member_is_joined_to() -> None:
    clock = ManualClock()
    registry = Registry(MODEL.vocabulary, clock, lost_after_s=2.0)
    assert registry.coordinators == 1
    first, second = (registry.register(Register(name, f"{name}:1", MODEL, 2)) for name in ("a", "b"))
    assert registry.coordinators == 1, "neither has reported"
    registry.on_heartbeat(first, Heartbeat(coordinators=2))
    registry.on_heartbeat(second, Heartbeat(coordinators=3))
    assert registry.coordinators == 3
    registry.on_stream_ended(second, "broken")
    assert registry.coordinators == 3, "it may come back, and its sessions run"
    registry.remove(second, "lost")
    assert registry.coordinators == 2


async def test_two_coordinators_let_a_client_have_its_quota_together(
    start_cluster: StartCluster, tmp_path: Path, say: Any
) -> None:
    write(tmp_path, {"alice": CallerRole.CLIENT, "member": CallerRole.MEMBER})
    shown = {
        name: TransportSettings(token_file=tmp_path / name) for name in ("clients/alice.token", "members/member.token")
    }
    clusters = [
        await start_cluster(tokens_file=tmp_path / "members/tokens.toml", client_max_requests=4, client_max_queued=2)
        for _ in range(2)
    ]
    first, _ = clusters
    verifier = await first.serve_verifier(say((5, 6, 7), then_wait=True))
    where = ",".join(each.coordinator.service.server.members_bound for each in clusters)
    dialled = Coordinators(where, shown["members/member.token"])
    await first.join("v1", verifier.address, ModelInfo("toy", first.tokenizer.vocabulary, 512, (0,)), dialled=dialled)
    await eventually(lambda: all(each.coordinator.registry.coordinators == 2 for each in clusters))
    asked: list[Any] = []
    for cluster in clusters:
        client = await cluster.stack.enter_async_context(AsyncClient(cluster.address, shown["clients/alice.token"]))
        for _ in range(2):
            asked.append(client.stream("x"))
            await anext(asked[-1])
        with pytest.raises(Exhausted, match="client_max_requests = 4, of which each of 2 coordinators allows 2"):
            await client.generate("x")
        told = await client.cluster()
        assert told.coordinators == 2
        assert told.quotas == (
            "quotas of clients by shares, as one of 2 coordinators: client_max_requests 2 of 4, client_max_queued 1 of 2"
        )
    assert verifier.open == 4
    for each in asked:
        await each.aclose()


async def test_the_share_of_a_coordinator_that_drains_is_the_others_at_once(
    start_cluster: StartCluster, say: Any
) -> None:
    clusters = [await start_cluster(client_max_requests=4) for _ in range(2)]
    first, second = clusters
    verifier = await first.serve_verifier(say((5, 6, 7), then_wait=True))
    where = Coordinators(",".join(each.coordinator.service.server.members_bound for each in clusters))
    await first.join("v1", verifier.address, ModelInfo("toy", first.tokenizer.vocabulary, 512, (0,)), dialled=where)
    await eventually(lambda: all(each.coordinator.registry.coordinators == 2 for each in clusters))
    runs = first.client.stream("x")
    await anext(runs)
    draining = asyncio.create_task(first.coordinator.service.serve(signals=False))
    await asyncio.sleep(0)
    first.coordinator.service.leave()
    await eventually(lambda: second.coordinator.registry.coordinators == 1)
    (member,) = second.coordinator.registry.verifiers
    assert member.at_home
    asked = [second.client.stream("x") for _ in range(3)]
    for each in asked:
        await anext(each)
    assert verifier.open == 4 and not draining.done(), "what runs goes on"
    for each in (runs, *asked):
        await each.aclose()
    assert await asyncio.wait_for(draining, 20) == 0
