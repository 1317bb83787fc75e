"""A verifier that has joined, says that it is idle, and fails every session at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import status_pb2  # pyright: ignore[reportMissingTypeStubs]

from specsplit.clock import SystemClock
from specsplit.errors import InvalidRequest, TargetFailed, Unavailable
from specsplit.membership import GroupRank, Register
from specsplit.rpc import VERIFIER_SERVICE, Server, dial
from specsplit.rpc.heard import Callbacks, Heard
from specsplit.rpc.member import Membership
from specsplit.rpc.standing import Sources, Standing
from specsplit.sessions import DecodeEvent, DecodeRequest, Preempted, Tokens
from specsplit.settings import VerifierSettings
from specsplit.values import (
    DrafterInfo,
    DrafterKind,
    FailoverCause,
    FinishReason,
    Load,
    ModelInfo,
    SpeculationStatistics,
)
from specsplit_coordinator.requests import run
from tests.support.eventually import eventually
from tests.support.garbage import garbling

if TYPE_CHECKING:
    from .conftest import Cluster, Script

Say = Callable[..., "Script"]


async def join_unreachable(cluster: Cluster, address: str = "127.0.0.1:9") -> None:
    """A member at an address where nobody listens, as after a wrong `advertise` or behind a firewall, or somebody else does."""
    await cluster.join("bad", address, ModelInfo("toy", cluster.tokenizer.vocabulary, 512, (0,)), 64)


async def add_silent_rank(cluster: Cluster) -> None:
    """The other rank of group g, which has no room for a session."""
    model = ModelInfo("toy", cluster.tokenizer.vocabulary, 512, (0,))
    await cluster.join("silent", "127.0.0.1:9", model, 1, group=GroupRank("g", 1, 2))
    cluster.coordinator.registry.verifiers[-1].running = 1


async def test_requests_go_to_the_verifier_that_works_and_none_of_them_fails(cluster: Cluster, say: Say) -> None:
    await join_unreachable(cluster)
    await cluster.add_verifier(say((5,)), "good", max_sessions=16)
    results = [await cluster.client.generate("x") for _ in range(10)]
    results += await asyncio.gather(*(cluster.client.generate("x") for _ in range(30)))
    assert Counter(result.done.verifier for result in results) == {"good": 40}


async def test_a_request_waits_for_a_sound_verifier_rather_than_fail_on_one_that_has_failed(
    cluster: Cluster, say: Say
) -> None:
    await join_unreachable(cluster)
    good = await cluster.add_verifier(say((5,), then_wait=True), "good", max_sessions=1)
    first = asyncio.create_task(cluster.client.generate("x"))
    second = asyncio.create_task(cluster.client.generate("x"))
    await eventually(lambda: good.open == 1 and cluster.coordinator.admission.queued == 1)
    assert not first.done() and not second.done()
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_with_no_other_verifier_the_caller_hears_at_once_what_is_wrong(cluster: Cluster) -> None:
    await join_unreachable(cluster)
    for _ in range(3):
        with pytest.raises(Unavailable, match="verifier bad: "):
            await cluster.client.generate("x")
    assert cluster.coordinator.admission.running == 0


async def test_a_verifier_that_works_again_gets_requests_again(cluster: Cluster, say: Say) -> None:
    well = asyncio.Event()

    async def moody(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        if not well.is_set():
            raise Unavailable("not today")
        async for event in say((5,))(request):
            yield event

    await cluster.add_verifier(moody, "moody", max_sessions=64)
    await cluster.add_verifier(say((5,)), "good", max_sessions=1)
    assert (await cluster.client.generate("x")).done.verifier == "good"
    well.set()
    async with asyncio.timeout(10):
        while (await cluster.client.generate("x")).done.verifier != "moody":
            await asyncio.sleep(0.05)
    assert [(await cluster.client.generate("x")).done.verifier for _ in range(4)] == ["moody"] * 4


ELSE = "does not answer as a verifier does"
OF_AN_OK = status_pb2.Status(message="well").SerializeToString()


@pytest.mark.parametrize(
    ("peer", "problem"),
    [
        pytest.param(None, f"{ELSE}: UNIMPLEMENTED", id="somebody else is at the address"),
        pytest.param((), "the peer sent what is not a DecodeSessionsResponse", id="answers cannot be read"),
        pytest.param((grpc.StatusCode.INTERNAL, OF_AN_OK), f"{ELSE}: INTERNAL: 'no'", id="details of another end"),
        *(
            pytest.param((code,), f"{ELSE}: {code.name}: 'no'", id=f"an end that no verifier makes, {code.name}")
            for code in (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.ABORTED, grpc.StatusCode.UNKNOWN)
        ),
    ],
)
async def test_one_that_answers_as_no_verifier_does_is_as_bad(
    cluster: Cluster, say: Say, peer: tuple[Any, ...] | None, problem: str
) -> None:
    address = cluster.address if peer is None else await cluster.stack.enter_async_context(garbling(*peer))
    await join_unreachable(cluster, address)
    with pytest.raises(Unavailable, match=f"verifier bad at .*{problem}"):
        await cluster.client.generate("x")
    await cluster.add_verifier(say((5,)), "good")
    assert (await cluster.client.generate("x")).done.verifier == "good"


async def test_after_the_first_token_another_verifier_goes_on_behind_what_has_come(cluster: Cluster, say: Say) -> None:
    async def breaks_off(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        raise Unavailable("gone")

    await cluster.add_verifier(breaks_off, "a", max_sessions=64)
    good = await cluster.add_verifier(say((6,), (7,)), "b", max_sessions=1)
    result = await cluster.client.generate([9, 8], max_tokens=7)
    assert (result.tokens, result.done.verifier) == ((5, 6, 7), "b")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (2, 3)
    assert result.speculation.steps == 3, "the sums of both"
    (asked,) = good.asked
    assert (asked.tokens, asked.committed, asked.stopping.max_tokens) == ((9, 8, 5), 1, 7)
    assert not cluster.coordinator.registry.verifiers[0].breaker.admits


async def test_a_session_whose_kind_of_drafter_is_gone_goes_on_without_and_that_is_said(
    cluster: Cluster, say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks_off(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        registry = cluster.coordinator.registry
        registry.remove(registry.drafters[0], "it was killed")
        raise Unavailable("gone")

    await cluster.add_drafter(DrafterKind.NGRAM, "d1")
    await cluster.add_verifier(breaks_off, "a", max_sessions=64)
    await cluster.add_verifier(say((6,)), "b", max_sessions=1)
    with caplog.at_level("WARNING", "specsplit_coordinator.requests.run"):
        result = await cluster.client.generate("x", drafter="ngram")
    assert (result.tokens, result.done.drafter) == ((5, 6), "")
    assert "a session goes on without the drafter that was asked for" in caplog.messages


async def test_a_request_that_brings_verifiers_down_does_not_meet_all_of_them(cluster: Cluster) -> None:
    async def dies(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        if not request.committed:
            yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        raise Unavailable("that was too much")

    verifiers = [await cluster.add_verifier(dies, f"v{i}") for i in range(6)]
    with pytest.raises(Unavailable, match="that was too much"):
        await cluster.client.generate("x")
    assert sum(len(verifier.asked) for verifier in verifiers) == 4, "the first brought a token, the next three nothing"


async def test_a_request_on_which_targets_fail_cools_no_verifier_and_is_tried_on_another_before_the_same(
    cluster: Cluster,
) -> None:
    async def fails(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        raise TargetFailed("the target failed on this session, twice in a row")
        yield

    verifiers = [await cluster.add_verifier(fails, f"v{i}", max_sessions=64) for i in range(4)]
    for each in range(4):
        with pytest.raises(TargetFailed, match="twice in a row"):
            await cluster.client.generate("x", request_id=f"r{each}")
    assert sum(len(verifier.asked) for verifier in verifiers) == 4 * 3
    for verifier in verifiers:
        ids = [request.request_id for request in verifier.asked]
        assert len(set(ids)) == len(ids), "no request met a verifier twice"
    members = cluster.coordinator.registry.verifiers
    assert all(member.breaker.failures == 0 and member.breaker.admits for member in members)


async def test_a_request_on_which_the_only_target_fails_is_tried_there_once_more_after_a_while(
    cluster: Cluster, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SHORTAGE_S", 0.01)
    left = [2]

    async def short_of_memory(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        if left[0]:
            left[0] -= 1
            raise TargetFailed("none left, just now")
        async for event in say((5,))(request):
            yield event

    await cluster.add_verifier(short_of_memory, "only")
    assert (await cluster.client.generate("x")).tokens == (5,)


async def test_a_session_that_loses_its_verifier_waits_for_one_only_so_long(
    start_cluster: Callable[..., Any], say: Say
) -> None:
    cluster = await start_cluster(failover_s=0.2, lost_after_ms=200)
    await cluster.add_verifier(say((5,), then_wait=True), "v1")
    asked = asyncio.create_task(cluster.client.generate("x"))
    async with asyncio.timeout(10):
        await eventually(lambda: cluster.coordinator.requests.totals.tokens)
        cluster.joined["v1"][1].cancel()
        with pytest.raises(
            Unavailable, match=r"v1 was lost: .*; no verifier took it over in 0.2 s: no verifier has joined"
        ):
            await asked
    assert cluster.coordinator.admission.running == cluster.coordinator.admission.queued == 0


async def test_a_preempted_session_moves_to_where_its_pages_are_free_and_stays_where_none_are(
    cluster: Cluster, say: Say
) -> None:
    async def preempts(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        yield Preempted()
        async for event in say((6,))(request):
            yield event

    await cluster.add_verifier(preempts, "a", max_sessions=64)
    assert (await cluster.client.generate("x")).tokens == (5, 6), "nobody else is there"
    pages = 0
    other = await cluster.add_verifier(say((7,)), "b", 1, lambda: Load(free_pages=pages, total_pages=99, page_size=16))
    member = cluster.coordinator.registry.verifiers[1]
    for pages, tokens in ((0, (5, 6)), (99, (5, 7))):
        async with asyncio.timeout(10):
            while member.load.free_pages != pages or not member.load.page_size:
                await asyncio.sleep(0.01)
        assert (await cluster.client.generate("x")).tokens == tokens
    assert [each.committed for each in other.asked] == [1]
    told = await cluster.client.cluster()
    assert (told.preemptions, told.failovers) == (3, 1)


async def test_what_is_wrong_with_the_request_is_not_held_against_the_verifier(cluster: Cluster, say: Say) -> None:
    async def picky(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        raise InvalidRequest("token_ids", "are not to my taste")
        yield

    await cluster.add_verifier(picky, "picky", max_sessions=64)
    good = await cluster.add_verifier(say((5,)), "good", max_sessions=1)
    with pytest.raises(InvalidRequest, match="not to my taste"):
        await cluster.client.generate("x")
    assert good.asked == []
    assert cluster.coordinator.registry.verifiers[0].breaker.admits


@pytest.mark.parametrize("whose", ["its own", "another rank's"])
async def test_what_a_drained_verifier_said_last_is_read_though_it_has_left_the_cluster(
    cluster: Cluster, say: Say, whose: str
) -> None:
    left = asyncio.Event()

    async def lingers(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        async for event in say((5,), (6,), (7,))(request):
            yield event
            await left.wait()

    alone, registry = whose == "its own", cluster.coordinator.registry
    verifier = await cluster.add_verifier(lingers, "leaving", group=None if alone else GroupRank("g", 0, 2))
    if not alone:
        await add_silent_rank(cluster)
    asked = asyncio.create_task(cluster.client.generate("x"))
    said_by = cluster.joined["leaving" if alone else "silent"][0]
    async with asyncio.timeout(10):
        await eventually(lambda: verifier.open)
        said_by.report_draining()
        await eventually(lambda: registry.verifiers[0].leaving)
        cluster.joined["leaving"][1].cancel()
        await eventually(lambda: not any(member.member_id == "leaving" for member in registry.members))
        left.set()
        assert (await asked).tokens == (5, 6, 7)


async def test_a_drafter_that_is_gone_when_it_is_a_sessions_turn_is_not_held_against_the_verifier(
    cluster: Cluster, say: Say
) -> None:
    verifier = await cluster.add_verifier(say((5,), then_wait=True), "v", max_sessions=1)
    await cluster.join("d", "127.0.0.1:9", DrafterInfo(DrafterKind.NGRAM, "n-gram", None, 512), 64)
    first = asyncio.create_task(cluster.client.generate("x"))
    async with asyncio.timeout(10):
        await eventually(lambda: verifier.open)
        second = asyncio.create_task(cluster.client.generate("x", drafter="ngram"))
        await eventually(lambda: cluster.coordinator.admission.queued)
    registry = cluster.coordinator.registry
    registry.remove(registry.drafters[0], "it was killed")
    first.cancel()
    with pytest.raises(Unavailable, match="no ngram drafter can serve this"):
        await second
    assert registry.verifiers[0].breaker.failures == 0
    assert cluster.coordinator.admission.running == 0


async def test_a_rank_that_hands_a_session_back_since_another_rank_drains_has_drained_and_not_failed(
    cluster: Cluster, say: Say
) -> None:
    async def hands_back(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        cluster.joined["silent"][0].report_draining()
        await eventually(lambda: cluster.coordinator.registry.verifiers[0].leaving)
        raise Unavailable("this verifier is draining")

    causes: list[FailoverCause] = []
    cluster.coordinator.requests.on_failover.append(lambda cause, tokens: causes.append(cause))
    await cluster.add_verifier(hands_back, "leaving", 64, group=GroupRank("g", 0, 2))
    await add_silent_rank(cluster)
    asked = asyncio.create_task(cluster.client.generate("x"))
    async with asyncio.timeout(10):
        await eventually(lambda: cluster.coordinator.requests.totals.tokens)
        await cluster.add_verifier(say((6,)), "other")
        assert (await asked).tokens == (5, 6)
    assert causes == [FailoverCause.DRAINED]


async def test_an_answer_that_is_whole_when_its_verifier_fails_goes_on_nowhere_and_counts_no_failover(
    cluster: Cluster,
) -> None:
    async def breaks_off(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5, 6), 0, SpeculationStatistics(steps=1))
        raise Unavailable("gone")

    await cluster.add_verifier(breaks_off)
    result = await cluster.client.generate("x", max_tokens=2)
    assert (result.tokens, result.reason, result.speculation.steps) == ((5, 6), FinishReason.LENGTH, 1)
    assert (await cluster.client.cluster()).failovers == 0


async def test_a_verifier_that_does_not_know_this_coordinator_is_no_fault_of_the_callers(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "tokens.toml").write_text("")
    settings = VerifierSettings(model=tmp_path, tokens_file=tmp_path / "tokens.toml")
    server = Server(settings, "verifier", services=[VERIFIER_SERVICE])
    await join_unreachable(cluster, await server.start())
    with pytest.raises(
        Unavailable,
        match="verifier bad refuses this coordinator: DecodeSessions needs the role member: no token was shown",
    ):
        await cluster.client.generate("x")
    await server.stop()


async def test_a_verifier_that_could_be_dialled_in_the_clear_alone_is_refused(cluster: Cluster) -> None:
    register = Register("far", "10.0.0.1:50051", ModelInfo("toy", cluster.tokenizer.vocabulary, 512, (0,)), 4)
    standing = Standing(register, Sources(Load, None, None, tuple), None, SystemClock())
    member = Membership(cluster.address, partial(dial, cluster.address), standing, Heard(Callbacks()), lambda: None)
    joining = asyncio.create_task(member._join_once())  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(InvalidRequest, match=r"register\.address: 10\.0\.0\.1:50051 is on another machine"):
        await joining


async def test_a_verifier_that_refuses_since_it_drains_before_the_coordinator_knows_drops_no_request(
    cluster: Cluster, say: Say
) -> None:
    draining, refused = asyncio.Event(), list[str]()

    async def drains(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        if draining.is_set():
            refused.append(request.request_id)
            raise Unavailable("the verifier is draining and takes no new sessions; use another, or try again later")
        async for event in say((5,))(request):
            yield event

    await cluster.add_verifier(drains, "v1", max_sessions=12)
    await cluster.add_verifier(say((5,)), "v2", max_sessions=1)
    asked = [asyncio.create_task(cluster.client.generate("x")) for _ in range(6)]
    await asyncio.sleep(0.05)
    draining.set()
    asked += [asyncio.create_task(cluster.client.generate("x")) for _ in range(6)]
    await asyncio.gather(*asked)
    assert refused
    cluster.joined["v1"][0].report_draining()
    await asyncio.gather(*(cluster.client.generate("x") for _ in range(12)))
