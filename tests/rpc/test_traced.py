"""Spans of calls, sent by the real exporter to a receiver: what they say, and that each of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from specsplit import errors
from specsplit.observe import TraceContext, Tracing, set_up_tracing
from specsplit.observe.span_table import DECODE_CALL, GENERATE_CALL, problems_of, row
from specsplit.rpc import Context, Server, dial, wait_until_serving
from specsplit.settings import CoordinatorSettings, VerifierSettings
from specsplit.v1 import verifier_pb2, verifier_pb2_grpc
from specsplit.values import TraceChanges
from tests.rpc.toy import generate, get_cluster, serving
from tests.support.otlp import ReceivedSpan, Receiver, receiving

CALLER = TraceContext(0xA0, 0xB0, sampled=True)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


async def spans_of(receiver: Receiver, then: Callable[[], None] = lambda: None) -> list[ReceivedSpan]:
    """What a generation leaves that does `then` after two replies."""
    async with serving(then, trace_endpoint=receiver.address) as (_, channel):
        with suppress(grpc.aio.AioRpcError):
            await generate(channel)
    return receiver.spans


def raising(error: Exception) -> Callable[[], None]:
    def then() -> None:
        raise error

    return then


def code_of(span: ReceivedSpan) -> object:
    return span.attributes["rpc.grpc.status_code"]


async def test_a_call_that_is_answered_has_the_span_of_the_table(receiver: Receiver) -> None:
    (span,) = await spans_of(receiver)
    assert (span.service, span.kind, span.name) == ("specsplit-coordinator", "server", GENERATE_CALL)
    assert problems_of(row("coordinator", GENERATE_CALL, "server"), span.attributes.items()) == []
    assert (span.parent_id, code_of(span), span.failed, span.events) == ("", 0, False, ())
    assert span.end_ns >= span.start_ns


async def test_an_error_of_our_own_is_the_status_of_the_span_and_the_callers_fault_is_no_failure(
    receiver: Receiver,
) -> None:
    (span,) = await spans_of(receiver, raising(errors.Exhausted("the queue is full")))
    assert (code_of(span), span.failed, span.events) == (8, False, ())


async def test_an_error_that_is_the_servers_fault_is_a_failure_with_its_sentence(receiver: Receiver) -> None:
    (span,) = await spans_of(receiver, raising(errors.Unavailable("no verifier has joined")))
    assert (code_of(span), span.failed, span.sentence) == (14, True, "no verifier has joined")


async def test_an_unexpected_error_is_a_failure_that_gives_nothing_away(receiver: Receiver) -> None:
    (span,) = await spans_of(receiver, raising(ZeroDivisionError("a secret")))
    assert (code_of(span), span.failed) == (13, True)
    assert "a secret" not in span.sentence
    assert span.events == ()


async def test_health_and_questions_about_the_cluster_leave_no_span(receiver: Receiver) -> None:
    async with serving(trace_endpoint=receiver.address) as (_, channel):
        await wait_until_serving(channel, 5)
        await get_cluster(channel)
    assert receiver.spans == []


class Decoding(verifier_pb2_grpc.VerifierServiceServicer):
    """Streams as it is told, and keeps what trace each call belongs to."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self.begun = asyncio.Event()
        self.traces: list[TraceContext | None] = []
        self.headers: list[str] = []

    async def Decode(  # noqa: N802
        self, request: verifier_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        self.traces.append(self._tracing.current())
        self.headers += [str(value) for key, value in context.invocation_metadata() or () if key == "traceparent"]
        self.begun.set()
        yield verifier_pb2.DecodeResponse()
        match request.request_id:
            case "wait":
                await asyncio.Event().wait()
            case "flood":
                while True:
                    yield verifier_pb2.DecodeResponse()
            case "fail":
                raise errors.Unavailable("the engine has died")

    UpdateWeights = verifier_pb2_grpc.VerifierServiceServicer.UpdateWeights
    DecodeSessions = verifier_pb2_grpc.VerifierServiceServicer.DecodeSessions

    def Watch(  # noqa: N802
        self, request: verifier_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[verifier_pb2.WatchResponse]:
        raise AssertionError("nobody watches here")


class Pair:
    """A verifier, and a coordinator's channel to it, each with spans of its own."""

    def __init__(self, receiver: Receiver, **settings: object) -> None:
        told = {"model": Path("unused"), "trace_endpoint": receiver.address, **settings}
        self.server = Server(VerifierSettings.load(None, **{"listen": "127.0.0.1:0", **told}), "verifier", services=[])
        self.decoding = Decoding(self.server.tracing)
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self.decoding, self.server.grpc)
        self.tracing = set_up_tracing("coordinator", CoordinatorSettings.load(None, **told))
        self.channel: grpc.aio.Channel

    def decode(
        self, request_id: str = "", timeout_s: float | None = None, trace: TraceContext | None = CALLER
    ) -> grpc.aio.UnaryStreamCall[verifier_pb2.DecodeRequest, verifier_pb2.DecodeResponse]:
        stub = verifier_pb2_grpc.VerifierServiceStub(self.channel)
        with self.tracing.within(trace):
            return stub.Decode(verifier_pb2.DecodeRequest(request_id=request_id), timeout=timeout_s)

    async def close(self) -> None:
        await self.channel.close()
        await self.server.stop()
        self.tracing.close()


@asynccontextmanager
async def paired(receiver: Receiver, **settings: object) -> AsyncIterator[Pair]:
    pair = Pair(receiver, **settings)
    pair.channel = dial(await pair.server.start(), None, pair.tracing)
    pair.server.ready()
    try:
        yield pair
    finally:
        await pair.close()


def both(receiver: Receiver) -> tuple[ReceivedSpan, ReceivedSpan]:
    """The one span of the client and the one of the server."""
    assert len(receiver.spans) == 2
    client, server = sorted(receiver.spans, key=lambda span: span.kind)
    assert (client.kind, server.kind, client.name, server.name) == ("client", "server", DECODE_CALL, DECODE_CALL)
    return client, server


async def test_a_trace_goes_from_the_caller_through_both_ends_of_a_call(receiver: Receiver) -> None:
    async with paired(receiver) as pair:
        assert len([reply async for reply in pair.decode()]) == 1
        (seen,) = pair.decoding.traces
    client, server = both(receiver)
    assert {client.trace_id, server.trace_id} == {f"{0xA0:032x}"}
    assert (client.parent_id, server.parent_id) == (f"{0xB0:016x}", client.span_id)
    assert seen == TraceContext(0xA0, int(server.span_id, 16), sampled=True)
    assert problems_of(row("coordinator", DECODE_CALL, "client"), client.attributes.items()) == []
    assert (code_of(client), code_of(server), client.failed) == (0, 0, False)


async def test_a_failed_call_is_a_failure_at_both_ends(receiver: Receiver) -> None:
    async with paired(receiver) as pair:
        with pytest.raises(grpc.aio.AioRpcError):
            _ = [reply async for reply in pair.decode("fail")]
    for span in both(receiver):
        assert (code_of(span), span.failed, span.sentence) == (14, True, "the engine has died")


@pytest.mark.parametrize("request_id", ["wait", "flood"])
async def test_a_call_that_is_cancelled_ends_its_spans_at_once_at_both_ends(
    receiver: Receiver, request_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with paired(receiver) as pair:
        call = pair.decode(request_id)
        await anext(aiter(call))
        call.cancel()
        await asyncio.to_thread(receiver.wait_for, lambda spans: len(spans) == 2)  # while everything is still held
        assert call.cancelled()
    client, server = both(receiver)
    assert (code_of(client), code_of(server)) == (1, 1)
    assert (client.failed, server.failed) == (True, False)
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_a_call_that_is_cancelled_before_the_first_reply_ends_its_spans_too(receiver: Receiver) -> None:
    async with paired(receiver) as pair:
        call = pair.decode("wait")
        await pair.decoding.begun.wait()
        call.cancel()
        await asyncio.to_thread(receiver.wait_for, lambda spans: len(spans) == 2)
    assert [code_of(span) for span in both(receiver)] == [1, 1]


async def test_a_deadline_is_told_from_a_caller_that_went_away(receiver: Receiver) -> None:
    async with paired(receiver) as pair:
        with pytest.raises(grpc.aio.AioRpcError):
            _ = [reply async for reply in pair.decode("wait", timeout_s=0.3)]
    for span in both(receiver):
        assert (code_of(span), span.failed) == (4, True)


async def test_a_service_that_makes_no_spans_passes_its_callers_trace_on(receiver: Receiver) -> None:
    async with paired(receiver, trace_modules="drafter") as pair:
        _ = [reply async for reply in pair.decode()]
        assert pair.decoding.traces == [CALLER]
    assert receiver.spans == []


async def test_a_request_that_is_not_sampled_is_not_sampled_anywhere(receiver: Receiver) -> None:
    async with paired(receiver, trace_ratio=0) as pair:
        _ = [reply async for reply in pair.decode(trace=None)]
        (seen,) = pair.decoding.traces
        assert seen is not None and not seen.sampled
    assert receiver.spans == []


async def test_a_caller_that_decided_wins_over_the_ratio(receiver: Receiver) -> None:
    async with paired(receiver, trace_ratio=0) as pair:
        _ = [reply async for reply in pair.decode()]
    both(receiver)


async def test_level_and_ratio_change_while_a_service_runs(receiver: Receiver) -> None:
    async with paired(receiver, trace_level=0) as pair:
        for changes, expected in (
            (TraceChanges(), 0),
            (TraceChanges(level=1), 1),
            (TraceChanges(level=1, ratio=0), 0),
            (TraceChanges(level=3, ratio=1), 1),
        ):
            pair.server.tracing.apply(changes)
            pair.tracing.apply(changes)
            _ = [reply async for reply in pair.decode(trace=None)]
            seen = pair.decoding.traces[-1]
            assert (seen is not None and seen.sampled) == bool(expected)
    assert len(receiver.spans) == 4


async def test_without_an_endpoint_no_header_is_sent_and_nothing_is_wrapped() -> None:
    server = Server(VerifierSettings(model=Path("unused"), listen="127.0.0.1:0"), "verifier", services=[])
    decoding = Decoding(server.tracing)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(decoding, server.grpc)
    async with dial(await server.start(), None, server.tracing) as channel:
        server.ready()
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(verifier_pb2.DecodeRequest())
        assert (
            type(call).__name__ == "UnaryStreamCall"
        )  # an interceptor would have made it an InterceptedUnaryStreamCall
        _ = [reply async for reply in call]
    await server.stop()
    assert (decoding.headers, decoding.traces) == ([], [None])
