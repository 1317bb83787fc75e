"""Callers that do not read their answers hold no place, and not much memory, for not very long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Tokens
from specsplit.v1 import coordinator_pb2, coordinator_pb2_grpc
from specsplit.values import FinishReason, SpeculationStatistics, Usage
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from .conftest import Script, StartCluster

Say = Callable[..., "Script"]
WINDOW = [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)]
"""A connection on which next to nothing is sent ahead of what is read."""


def long_winded(messages: int, tokens: int) -> Script:
    """So many steps of so many tokens, as fast as they are taken."""

    async def script(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        for step in range(1, messages + 1):
            yield Tokens((5,) * tokens, 0, SpeculationStatistics(steps=step))
        usage = Usage(len(request.tokens), messages * tokens)
        yield Finished(FinishReason.LENGTH, None, usage, SpeculationStatistics(steps=messages))

    return script


class Idler:
    """Asks, and reads nothing until it is told to."""

    def __init__(self, address: str, requests: int = 1) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=WINDOW)
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(self._channel)
        self.calls: list[Any] = [stub.Generate(coordinator_pb2.GenerateRequest(text="x")) for _ in range(requests)]

    async def read(self) -> int:
        """Tokens of the first call, to its end."""
        return sum([len(message.delta.token_ids) async for message in self.calls[0]])

    async def close(self) -> None:
        await self._channel.close(None)


async def test_the_place_goes_back_when_the_verifier_is_done_though_nobody_reads(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(unread_s=600.0)
    verifier = await cluster.add_verifier(long_winded(200, 1000), max_sessions=4)
    idler = Idler(cluster.address, requests=4)
    await eventually(lambda: len(verifier.asked) == 4 and cluster.coordinator.admission.running == 0)
    assert verifier.open == 0
    assert (await cluster.client.generate("x")).usage.completion_tokens == 200_000
    assert await idler.read() == 200_000, "who reads late gets all of it"
    await idler.close()


async def test_more_than_is_kept_unread_ends_the_request(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(max_unread_bytes=100_000)
    verifier = await cluster.add_verifier(long_winded(2_000, 1000))
    idler = Idler(cluster.address)
    await eventually(lambda: len(verifier.asked) == 1 and cluster.coordinator.admission.running == 0)
    with pytest.raises(
        grpc.aio.AioRpcError, match=r"given up with .* bytes of it unread; .*, so read it as it comes"
    ) as caught:
        await idler.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await eventually(lambda: verifier.open == 0)
    await idler.close()


async def test_a_call_of_which_nothing_is_read_for_long_ends(
    start_cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await start_cluster(unread_s=0.3)
    await cluster.add_verifier(long_winded(200, 1000))
    idler = Idler(cluster.address)
    await eventually(lambda: "a caller has stopped reading its answer" in caplog.text)
    leaving = asyncio.create_task(cluster.coordinator.service.serve(signals=False))
    await asyncio.sleep(0)
    cluster.coordinator.service.leave()
    assert await asyncio.wait_for(leaving, 10) == 0, "nothing waits for that caller any more"
    with pytest.raises(grpc.aio.AioRpcError):
        await idler.read()
    await idler.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_who_reads_slowly_but_reads_is_left_alone(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(unread_s=2.0)
    await cluster.add_verifier(long_winded(120, 1000))
    idler, count = Idler(cluster.address), 0
    async for message in idler.calls[0]:
        count += len(message.delta.token_ids)
        await asyncio.sleep(0.03)
    assert count == 120_000
    await idler.close()


async def test_draining_waits_for_answers_that_are_being_read(start_cluster: StartCluster) -> None:
    cluster = await start_cluster()
    await cluster.add_verifier(long_winded(200, 1000))
    idler = Idler(cluster.address)
    await eventually(lambda: cluster.coordinator.requests.requests != () and cluster.coordinator.admission.running == 0)
    leaving = asyncio.create_task(cluster.coordinator.service.serve(signals=False))
    await asyncio.sleep(0)
    cluster.coordinator.service.leave()
    await asyncio.sleep(0.3)
    assert not leaving.done()
    assert await idler.read() == 200_000
    assert await asyncio.wait_for(leaving, 20) == 0
    await idler.close()


async def test_exhausted_is_what_the_log_says_of_an_answer_that_was_given_up(
    start_cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster = await start_cluster(max_unread_bytes=100_000)
    await cluster.add_verifier(long_winded(2_000, 1000))
    idler = Idler(cluster.address)

    def failed() -> list[str]:
        records = [vars(record) for record in caplog.records if record.message == "request failed"]
        return [record["specsplit_fields"]["code"] for record in records]

    await eventually(lambda: failed() == ["RESOURCE_EXHAUSTED"])
    with pytest.raises(grpc.aio.AioRpcError, match="unread"):
        await idler.read()
    await idler.close()


async def test_one_message_that_is_larger_than_what_may_be_unread_waits_for_its_reader(
    start_cluster: StartCluster,
) -> None:
    cluster = await start_cluster(max_unread_bytes=2_000)
    await cluster.add_verifier(long_winded(3, 50_000))
    assert (await cluster.client.generate("x")).usage.completion_tokens == 150_000
