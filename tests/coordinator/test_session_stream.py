"""The sessions of a coordinator on a verifier share one stream, over real gRPC; and what happens where they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from specsplit.errors import DeadlineExceeded, SpecsplitError
from specsplit.observe.span_table import GENERATE_CALL
from specsplit.requests import GenerateRequest, TokenPrompt
from specsplit.rpc import VERIFIER_SERVICE
from specsplit.rpc.edge import Edge
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Tokens
from specsplit.v1 import verifier_pb2
from specsplit.values import FinishReason, ModelInfo, SpeculationStatistics, Usage
from specsplit.wire.coordinator import generate_to_wire
from specsplit.wire.verifier import decode_from_wire, decode_response
from specsplit_coordinator.members import session_stream
from tests.coordinator.conftest import CONTEXT, Cluster, Script
from tests.coordinator.test_unread import WINDOW
from tests.support.eventually import eventually

Say = Callable[..., Script]


async def test_sessions_share_one_call_and_a_caller_that_leaves_ends_his_own_alone(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5, 6), then_wait=True), max_sessions=64)
    asked = [asyncio.create_task(cluster.client.generate("x")) for _ in range(9)]
    await eventually(lambda: verifier.open == 9)
    asked[0].cancel()
    await eventually(lambda: verifier.open == 8)
    assert verifier.streams == 1
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await eventually(lambda: verifier.open == 0)


async def test_when_the_stream_breaks_every_session_goes_on_elsewhere(cluster: Cluster, say: Say) -> None:
    first = await cluster.add_verifier(say((5,), then_wait=True), "a", max_sessions=64)
    asked = [asyncio.create_task(cluster.client.generate("x")) for _ in range(4)]
    await eventually(lambda: first.open == 4)
    await eventually(lambda: cluster.coordinator.requests.totals.tokens == 4)
    second = await cluster.add_verifier(say((6,)), "b", max_sessions=64)
    first.break_streams()
    async with asyncio.timeout(20):
        results = await asyncio.gather(*asked)
    assert [result.tokens for result in results] == [(5, 6)] * 4
    assert [request.committed for request in second.asked] == [1] * 4
    assert (await cluster.client.cluster()).failovers == 4


async def test_a_stream_that_cannot_be_read_ends_its_sessions_and_the_next_one_has_another(
    cluster: Cluster, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: object) -> None:
        raise ZeroDivisionError

    verifier = await cluster.add_verifier(say((5,)))
    with monkeypatch.context() as broken:
        broken.setattr(session_stream, "sessions_response_events", fail)
        with pytest.raises(
            SpecsplitError, match="internal error in a stream to a verifier; the log of the coordinator"
        ):
            await asyncio.wait_for(cluster.client.generate("x"), 20)
    assert (await cluster.client.generate("x")).tokens == (5,)
    assert verifier.streams == 2


async def test_a_session_whose_time_is_over_ends_though_its_verifier_says_nothing(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,), then_wait=True))
    with pytest.raises(DeadlineExceeded):
        await cluster.client.generate("x", timeout_s=0.3)
    assert verifier.timeouts[0] is not None and 0 < verifier.timeouts[0] <= 0.3
    await eventually(lambda: verifier.open == 0)


async def test_a_session_with_a_long_prompt_or_one_that_is_told_has_a_call_of_its_own(
    cluster: Cluster, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_stream, "FULL_BYTES", 200)
    verifier = await cluster.add_verifier(say((5,)))
    await cluster.client.generate([1] * 20)
    assert (verifier.streams, verifier.calls) == (1, 0)
    assert (await cluster.client.generate([1] * 300)).tokens == (5,)
    assert (verifier.streams, verifier.calls) == (1, 1)


@dataclass
class Older:
    """A verifier of a build that has no DecodeSessions."""

    asked: list[DecodeRequest] = field(default_factory=list[DecodeRequest])

    async def decode(
        self, request: verifier_pb2.DecodeRequest, context: Any
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        self.asked.append(decode_from_wire(request, 2048))
        yield decode_response(Tokens((5,), 0, SpeculationStatistics(steps=1)))
        yield decode_response(Finished(FinishReason.LENGTH, None, Usage(1, 1), SpeculationStatistics(steps=1)))


async def test_a_verifier_of_an_older_build_is_asked_in_a_call_for_each_session(cluster: Cluster) -> None:
    older, server = Older(), grpc.aio.server(interceptors=[Edge("verifier", lambda method: None)])
    handler = grpc.unary_stream_rpc_method_handler(
        older.decode,  # pyright: ignore[reportArgumentType]
        verifier_pb2.DecodeRequest.FromString,
        verifier_pb2.DecodeResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(VERIFIER_SERVICE, {"Decode": handler}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    cluster.stack.push_async_callback(server.stop, None)
    await cluster.join("old", address, ModelInfo("toy", cluster.tokenizer.vocabulary, CONTEXT, (0,)))
    for number in (1, 2):
        assert (await cluster.client.generate("x", max_tokens=1)).tokens == (5,)
        assert len(older.asked) == number


def to_one(endless: Callable[[], AsyncIterator[DecodeEvent]], others: Script) -> Script:
    """What a verifier says of the prompt (1, 2), and of all others."""

    async def says(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        async for event in endless() if request.tokens == (1, 2) else others(request):
            yield event

    return says


async def test_one_caller_that_does_not_read_keeps_nobody_else_waiting(
    start_cluster: Callable[..., Any], say: Say
) -> None:
    cluster, told = await start_cluster(max_unread_bytes=1024), list[int]()

    async def endless() -> AsyncIterator[DecodeEvent]:
        for steps in range(1, 200):
            told.append(steps)
            yield Tokens((5,) * 2_000, 0, SpeculationStatistics(steps=steps))
        await asyncio.Event().wait()

    verifier = await cluster.add_verifier(to_one(endless, say((5,))), max_sessions=8)
    async with grpc.aio.insecure_channel(cluster.address) as channel:
        idle = channel.unary_stream(GENERATE_CALL)(
            generate_to_wire(GenerateRequest(TokenPrompt((1, 2)))).SerializeToString()
        )
        await eventually(lambda: len(told) == 199)
        for _ in range(5):
            assert (await asyncio.wait_for(cluster.client.generate("x"), 10)).tokens == (5,)
        assert (verifier.streams, verifier.calls) == (1, 0)
        idle.cancel()


@pytest.mark.parametrize("n", [1, 2])
async def test_a_session_of_which_too_much_waits_is_given_up_and_the_others_of_its_stream_go_on(
    start_cluster: Callable[..., Any], say: Say, n: int
) -> None:
    cluster, told = await start_cluster(max_unread_bytes=1024), list[int]()

    async def endless() -> AsyncIterator[DecodeEvent]:
        while True:
            told.append(20_000)
            yield Tokens((5,) * told[-1], 0, SpeculationStatistics(steps=len(told)))
            await asyncio.sleep(0.001)

    verifier = await cluster.add_verifier(to_one(endless, say((5,))), max_sessions=8)
    async with grpc.aio.insecure_channel(cluster.address, options=WINDOW) as channel:
        asked = generate_to_wire(GenerateRequest(TokenPrompt((1, 2)), n=n))
        idle = channel.unary_stream(GENERATE_CALL)(asked.SerializeToString())
        await eventually(lambda: bool(told) and verifier.open == 0)
        for _ in range(5):
            assert (await asyncio.wait_for(cluster.client.generate("x"), 10)).tokens == (5,)
        assert (verifier.streams, verifier.calls) == (1, 0)
        with pytest.raises(grpc.aio.AioRpcError, match=r"given up with .* bytes of it unread") as caught:
            async for _ in idle:
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    (member,) = cluster.coordinator.registry.verifiers
    assert member.breaker.failures == 0, "it is no fault of the verifier's"
