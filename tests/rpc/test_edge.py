"""How errors leave a servicer, over a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from specsplit import errors
from specsplit.rpc import Context, dial, from_rpc_error
from specsplit.v1 import coordinator_pb2 as pb
from specsplit.v1 import coordinator_pb2_grpc
from tests.rpc.toy import Toy, generate, get_model_info, make_server, serving


def raising(error: Exception) -> Callable[[], None]:
    def then() -> None:
        raise error

    return then


async def failure_of(error: Exception, call: Callable[[grpc.aio.Channel], object]) -> errors.SpecsplitError:
    async with serving(raising(error)) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel)  # pyright: ignore[reportGeneralTypeIssues]
    return from_rpc_error(caught.value, "toy")


@pytest.mark.parametrize("call", [get_model_info, generate])
async def test_an_error_of_a_servicer_arrives_as_the_same_error(call: Callable[[grpc.aio.Channel], object]) -> None:
    arrived = await failure_of(errors.InvalidRequest("sampling.top_p", "is 2: too much"), call)
    assert isinstance(arrived, errors.InvalidRequest)
    assert (arrived.field, arrived.problem) == ("sampling.top_p", "is 2: too much")


async def test_a_refusal_for_want_of_room_carries_its_hint() -> None:
    arrived = await failure_of(errors.Exhausted("the queue is full", retry_after_s=1.5), get_model_info)
    assert isinstance(arrived, errors.Exhausted)
    assert (str(arrived), arrived.retry_after_s) == ("the queue is full", 1.5)


@pytest.mark.parametrize("call", [get_model_info, generate])
async def test_an_unexpected_error_is_logged_in_full_and_answered_in_brief(
    call: Callable[[grpc.aio.Channel], object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "specsplit.rpc.edge"):
        arrived = await failure_of(ZeroDivisionError("a secret"), call)
    assert "a secret" in caplog.text
    assert "a secret" not in str(arrived)
    assert "the log of the coordinator says more" in str(arrived)


class Endless(Toy):
    """Streams for ever and notes when it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        try:
            while True:
                yield pb.GenerateResponse()
                await asyncio.sleep(0)
        finally:
            self.over.set()


async def test_a_caller_that_goes_away_ends_the_servicer_at_once() -> None:
    endless, server = Endless(), make_server()
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(endless, server.grpc)
    async with dial(await server.start()) as channel:
        server.ready()
        call = coordinator_pb2_grpc.CoordinatorServiceStub(channel).Generate(pb.GenerateRequest())
        async for _ in call:
            call.cancel()
            break
        async with asyncio.timeout(5):
            await endless.over.wait()
    await server.stop()


async def test_replies_before_an_error_arrive() -> None:
    async with serving(raising(errors.Unavailable("gone"))) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError, match="gone"):
            await generate(channel)
    async with serving() as (_, channel):
        assert await generate(channel) == 2


async def test_a_sentence_of_the_transport_is_given_the_name_of_the_peer() -> None:
    async with serving() as (server, channel):
        await server.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get_model_info(channel)
    arrived = from_rpc_error(caught.value, "coordinator 127.0.0.1:1")
    assert isinstance(arrived, errors.Unavailable)
    assert str(arrived).startswith("coordinator 127.0.0.1:1: ")


async def test_a_sentence_of_the_peer_is_left_as_it_is() -> None:
    assert str(await failure_of(errors.Unavailable("no verifier is left"), get_model_info)) == "no verifier is left"
