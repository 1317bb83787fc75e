"""How errors leave a servicer, over a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from grpc._cython.cygrpc import ExecuteBatchError

from specsplit import errors
from specsplit.rpc import Context, dial, from_rpc_error
from specsplit.v1 import cluster_pb2, cluster_pb2_grpc, coordinator_pb2_grpc, drafter_pb2, drafter_pb2_grpc
from specsplit.v1 import coordinator_pb2 as pb
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


async def test_what_exceeds_the_context_arrives_as_that_and_not_as_any_wrong_value() -> None:
    arrived = await failure_of(errors.ContextExceeded("chat.messages", "is 600 tokens long"), generate)
    assert type(arrived) is errors.ContextExceeded
    assert (arrived.field, arrived.problem) == ("chat.messages", "is 600 tokens long")


async def test_a_refusal_for_want_of_room_carries_its_hint() -> None:
    arrived = await failure_of(errors.Exhausted("the queue is full", retry_after_s=1.5), get_model_info)
    assert isinstance(arrived, errors.Exhausted)
    assert (str(arrived), arrived.retry_after_s) == ("the queue is full", 1.5)


@pytest.mark.parametrize("kind", [ZeroDivisionError, grpc.aio.UsageError, grpc.aio.InternalError])
@pytest.mark.parametrize("call", [get_model_info, generate])
async def test_an_unexpected_error_is_logged_in_full_and_answered_in_brief(
    call: Callable[[grpc.aio.Channel], object], kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "specsplit.rpc.edge"):
        arrived = await failure_of(kind("a secret"), call)
    assert "a secret" in caplog.text
    assert "a secret" not in str(arrived)
    assert "the log of the coordinator says more" in str(arrived)


async def test_what_cannot_be_sent_to_a_caller_who_has_left_is_no_error_of_the_servicer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "specsplit.rpc.edge"):
        async with serving(raising(ExecuteBatchError("the caller has left"))) as (_, channel):
            with pytest.raises(
                grpc.aio.AioRpcError
            ):  # gRPC answers nobody, so this caller, who is there, waits in vain
                await coordinator_pb2_grpc.CoordinatorServiceStub(channel).GetModelInfo(
                    pb.GetModelInfoRequest(), timeout=0.2
                )
    assert [record for record in caplog.records if record.name == "specsplit.rpc.edge"] == []


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


GARBAGE = b"\xff\xff\xff"
CALLS = {
    "/specsplit.v1.CoordinatorService/GetModelInfo": "unary_unary",
    "/specsplit.v1.CoordinatorService/Generate": "unary_stream",
    "/specsplit.v1.ClusterService/Join": "stream_stream",
    "/specsplit.v1.DrafterService/Draft": "stream_stream",
    "/grpc.health.v1.Health/Check": "unary_unary",
    "/grpc.health.v1.Health/Watch": "unary_stream",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "stream_stream",
}


async def raw_status(channel: grpc.aio.Channel, path: str, shape: str, *requests: bytes) -> tuple[grpc.StatusCode, str]:
    """What a call with these bytes ends with."""

    async def sent() -> AsyncIterator[bytes]:
        for request in requests:
            yield request

    make = getattr(channel, shape)(path)
    call = make(sent() if shape.startswith("stream") else requests[0], timeout=10)
    with suppress(grpc.aio.AioRpcError):
        if shape.endswith("stream"):
            async for _ in call:
                pass
    return await call.code(), await call.details()


class Taking(cluster_pb2_grpc.ClusterServiceServicer, drafter_pb2_grpc.DrafterServiceServicer):
    """Takes whatever comes over a stream."""

    async def Join(  # noqa: N802
        self, request_iterator: AsyncIterator[cluster_pb2.JoinRequest], context: Context
    ) -> AsyncIterator[cluster_pb2.JoinResponse]:
        async for request in request_iterator:
            assert isinstance(request, cluster_pb2.JoinRequest)
            yield cluster_pb2.JoinResponse()

    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: Context
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        async for request in request_iterator:
            assert isinstance(request, drafter_pb2.DraftRequest)
            yield drafter_pb2.DraftResponse()


@asynccontextmanager
async def taking() -> AsyncIterator[grpc.aio.Channel]:
    """A server of every shape of call."""
    server, servicer = make_server(), Taking()  # pyright: ignore[reportAbstractUsage] (one method is not asked for)
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(Toy(), server.grpc)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(servicer, server.grpc)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)
    address = await server.start()
    server.ready()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await server.stop()


@pytest.mark.parametrize(("path", "shape"), CALLS.items(), ids=[path.rpartition("/")[2] for path in CALLS])
async def test_bytes_that_are_no_message_are_refused_without_a_word_in_the_log(
    path: str, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with taking() as channel:
        code, sentence = await raw_status(channel, path, shape, GARBAGE)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert sentence.startswith("request: is not a ")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_garbage_behind_good_messages_ends_the_stream() -> None:
    async with taking() as channel:
        path = "/specsplit.v1.ClusterService/Join"
        code, sentence = await raw_status(channel, path, "stream_stream", b"", b"", GARBAGE)
    assert (code, sentence) == (grpc.StatusCode.INVALID_ARGUMENT, "request: is not a JoinRequest")


@pytest.mark.parametrize(
    "path", ["/x", "/", "/a/b/c", "//", "/specsplit.v1.CoordinatorService", "/specsplit.v1.Nothing/At/All", "/é/x"]
)
async def test_a_path_that_names_no_method_is_not_implemented(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with taking() as channel:
        code, _ = await raw_status(channel, path, "unary_unary", b"")
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_message_that_would_be_huge_in_memory_is_refused_before_it_is_parsed() -> None:
    async with taking() as channel:
        message = b"\x0a\x00" * 2**20
        code, sentence = await raw_status(channel, "/specsplit.v1.DrafterService/Draft", "stream_stream", message)
    assert (code, sentence) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "events: has more than 2,048 entries, expected at most 2,048",
    )


class Lingering(Taking):
    """Goes on reading its stream although that was cancelled, when the server has stopped."""

    def __init__(self) -> None:
        self.begun, self.stopped, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: Context
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        yield drafter_pb2.DraftResponse()
        self.begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await self.stopped.wait()
        try:
            await anext(request_iterator)
        finally:
            self.over.set()


async def test_a_stream_that_is_read_when_the_server_has_stopped_ends_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, servicer = make_server(), Lingering()  # pyright: ignore[reportAbstractUsage] (one method is not asked for)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)
    address = await server.start()
    server.ready()
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream("/specsplit.v1.DrafterService/Draft")()
        await call.write(b"")
        async with asyncio.timeout(20):
            await servicer.begun.wait()
            await server.stop()
            servicer.stopped.set()
            await servicer.over.wait()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
