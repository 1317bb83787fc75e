"""The table between errors and statuses."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit import errors
from specsplit.rpc import CODES, code_of, code_of_departure, from_rpc_error, number_of, to_error, to_status
from tests.rpc.toy import get_model_info, serving

OWN_CANCEL = "Locally cancelled by application!"
EXAMPLES = [
    errors.InvalidRequest("sampling.top_p", "is 2, expected a number in (0, 1]: see the docs"),
    errors.Unsupported("logprobs", "not supported yet"),
    errors.Incompatible("vocabulary mismatch: one has 7, the other 8"),
    errors.IllegalEvent(7, "open", "commit", "number 3 after 1: out of order"),
    errors.Exhausted("the queue is full"),
    errors.NotFound("no drafter of kind eagle"),
    errors.Unavailable("draining"),
    errors.DeadlineExceeded("no time left"),
    errors.Cancelled("the caller went away"),
    errors.SpecsplitError("internal"),
]


def test_every_error_has_a_row() -> None:
    kinds = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SpecsplitError)
    }
    assert kinds == set(CODES)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_through_a_code_and_a_sentence(error: errors.SpecsplitError) -> None:
    for code in (code_of(error), number_of(error)):
        back = to_error(code, str(error))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


async def test_a_target_that_failed_on_one_session_is_told_from_a_verifier_that_is_gone() -> None:
    for error in (errors.TargetFailed("twice in a row"), errors.Unavailable("gone")):

        def then(error: errors.SpecsplitError = error) -> None:
            raise error

        async with serving(then) as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await get_model_info(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        arrived = from_rpc_error(caught.value, "verifier v")
        assert (type(arrived), str(arrived)) == (type(error), str(error))


def test_a_subclass_takes_the_code_of_its_nearest_ancestor() -> None:
    class Late(errors.DeadlineExceeded):
        pass

    assert code_of(Late("late")) is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("left_s", "allowed_s", "code"),
    [
        (None, None, grpc.StatusCode.CANCELLED),
        (0.0, 0.5, grpc.StatusCode.DEADLINE_EXCEEDED),
        (0.0004, 0.5, grpc.StatusCode.DEADLINE_EXCEEDED),
        (0.3, 0.5, grpc.StatusCode.CANCELLED),
        (0.9, 91.0, grpc.StatusCode.DEADLINE_EXCEEDED),
        (30.0, 60.0, grpc.StatusCode.CANCELLED),
    ],
)
def test_a_call_that_its_caller_left_just_before_its_deadline_is_late(
    left_s: float | None, allowed_s: float | None, code: grpc.StatusCode
) -> None:
    assert code_of_departure(left_s, allowed_s) is code


async def test_a_deadline_arrives_at_most_one_per_cent_later_than_it_was_set() -> None:
    found: list[float] = []

    async def note(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        left_s = context.time_remaining()
        assert left_s is not None
        found.append(left_s)
        return b""

    server = grpc.aio.server()
    handlers = {"b": grpc.unary_unary_rpc_method_handler(note)}  # pyright: ignore[reportUnknownMemberType]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a", handlers),))  # pyright: ignore[reportUnknownMemberType]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    timeouts = [10.011, 50.01, 99.95, 100.5, 1009.0, 12345.0]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for timeout_s in timeouts:
            await channel.unary_unary("/a/b")(b"", timeout=timeout_s)  # pyright: ignore[reportUnknownMemberType]
    await server.stop(0)
    later = [left_s / timeout_s for left_s, timeout_s in zip(found, timeouts, strict=True)]
    assert max(later) <= 1.01  # what CANCELLED and DEADLINE_EXCEEDED are told apart by
    assert max(later) > 1.001  # else nothing is rounded any more


def test_the_public_sentence_is_the_error_itself() -> None:
    status = to_status(errors.InvalidRequest("max_tokens", "is 0, expected at least 1"))
    assert (status.code, status.details) == (grpc.StatusCode.INVALID_ARGUMENT, "max_tokens: is 0, expected at least 1")


@given(code=st.integers(1, 40), sentence=st.text())
def test_any_status_of_any_peer_becomes_an_error(code: int, sentence: str) -> None:
    assert isinstance(to_error(code, sentence), errors.SpecsplitError)


@pytest.mark.parametrize("character", ["x", "é", "語", "🦀", "\ud800", "%", "\n"])
async def test_a_status_that_repeats_a_very_long_text_still_arrives(character: str) -> None:
    text = character * 5_000

    def then() -> None:
        raise errors.InvalidRequest(f"field {text}", f"is {text}, expected less")

    async with serving(then) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get_model_info(channel)
    arrived = from_rpc_error(caught.value)
    assert isinstance(arrived, errors.InvalidRequest)
    assert "characters)" in str(arrived)
    assert len(str(arrived).encode()) < 2_000


@given(st.text(), st.integers(0, 60))
def test_a_shortened_sentence_keeps_its_beginning_and_its_measure(sentence: str, most_bytes: int) -> None:
    short = errors.shortened(sentence, most_bytes)
    told = sentence.encode(errors="replace").decode()
    kept, mark, _ = short.rpartition("…")
    assert short == told or (mark and told.startswith(kept))
    assert len(short.encode()) <= max(most_bytes, len(f"… ({len(sentence):,} characters)".encode()))


def test_somebody_elses_text_is_quoted_with_its_length() -> None:
    assert errors.quoted("it's\n") == '"it\'s\\n"'
    assert errors.quoted("x" * 5_000) == f"'{'x' * 100}'… (5,000 characters)"


async def test_a_call_that_reaches_a_server_as_it_stops_is_unavailable_as_those_before_it() -> None:
    class Draining(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            async def refuse(request: bytes, context: Any) -> None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

            return grpc.unary_unary_rpc_method_handler(refuse)

    async def ask() -> None:
        while not over.is_set():
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary("/a/b")(b"")
            found.add((failed.value.code(), type(from_rpc_error(failed.value, "coordinator"))))

    found: set[object] = set()
    for _ in range(3):
        over, server = asyncio.Event(), grpc.aio.server()
        server.add_generic_rpc_handlers((Draining(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.TaskGroup() as callers:
            for _ in range(8):
                callers.create_task(ask())
            await asyncio.sleep(0.05)
            await server.stop(0.2)
            over.set()
    assert found <= {(code, errors.Unavailable) for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)}


async def test_a_call_that_its_own_caller_cancels_stays_cancelled() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        call = channel.unary_unary("/a/b")(b"", wait_for_ready=True)
        call.cancel()
        assert (await call.code(), await call.details()) == (grpc.StatusCode.CANCELLED, OWN_CANCEL)
    nothing = grpc.aio.Metadata()
    own = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, nothing, nothing, details=OWN_CANCEL)
    assert type(from_rpc_error(own, "coordinator")) is errors.Cancelled


def test_a_call_that_broke_off_while_it_was_written_to_is_unavailable_and_says_of_whom() -> None:
    nothing = grpc.aio.Metadata()
    broken = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, details="Internal error from Core")
    error = from_rpc_error(broken, "coordinator")
    assert type(error) is errors.Unavailable
    assert str(error) == "coordinator: it ended the call, or the connection broke"
