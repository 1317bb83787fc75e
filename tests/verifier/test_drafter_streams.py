"""What a verifier makes of a drafter that does not keep to the protocol, and what it sends itself."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import specsplit_verifier.drafters.streams
from specsplit.clock import SystemClock
from specsplit.draft_events import Close, Open
from specsplit.features import Features
from specsplit.records import StreamStatistics
from specsplit.rpc import DRAFTER_SERVICE, dial
from specsplit.settings import VerifierSettings
from specsplit.speculation import Commit, Grow
from specsplit.v1 import drafter_pb2
from specsplit.values import Plan, Sampling, Vocabulary
from specsplit.wire.drafter import draft_request, draft_response
from specsplit.wire.limits import MAX_EVENTS, MAX_MALFORMED_EVENTS
from specsplit.wire.packing import bytes_of, packed
from specsplit_verifier.drafters.openings import OVER
from specsplit_verifier.drafters.streams import DRAFT, OTHERS, DrafterStreams, Stream, why_over
from specsplit_verifier.records.events import DrafterLost, FromDrafter
from tests.support.flooding import KINDS, flooding
from tests.support.garbage import GARBAGE

Draft = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
OPEN = Open((1, 2), Sampling(), Plan(), Vocabulary(9), 8)


@asynccontextmanager
async def served(draft: Draft) -> AsyncIterator[str]:
    """A drafter that answers every stream so: where it is."""
    handler = grpc.stream_stream_rpc_method_handler(draft)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(DRAFTER_SERVICE, {"Draft": handler}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with asyncio.timeout(20):
            yield address
    finally:
        await server.stop(None)


Heard: TypeAlias = "asyncio.Queue[FromDrafter | DrafterLost]"


@asynccontextmanager
async def streaming(**settings: Any) -> AsyncIterator[tuple[DrafterStreams, Heard]]:
    """A verifier's streams, closed in the end, and what is heard on them."""
    heard: Heard = asyncio.Queue()
    streams = DrafterStreams(VerifierSettings(model=Path("unused"), **settings), SystemClock(), heard.put_nowait)
    try:
        yield streams, heard
    finally:
        await streams.close()


async def why_lost(answer: bytes) -> str:
    """Why a drafter is lost that answers an open with these bytes."""

    async def draft(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await anext(requests)
        yield answer
        await asyncio.Event().wait()

    async with served(draft) as address, streaming() as (streams, heard):
        streams.send([(address, 1, OPEN)])
        event = await heard.get()
    assert isinstance(event, DrafterLost), event
    return event.why


async def why_lost_in_the_end(say: Callable[[int], bytes], told: int, patience_s: float) -> str:
    """Why a drafter is lost that reads one message, and then only says something ten times a second, while it is told more and more.

    `say` is given the highest id of a session that was opened.
    """
    over, opened = asyncio.Event(), 1

    async def draft(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await anext(requests)
        while not over.is_set():
            yield say(opened)
            await asyncio.sleep(0.1)

    async with served(draft) as address, streaming(drafter_lost_after_s=patience_s) as (streams, heard):
        streams.send([(address, 1, OPEN)])
        for opened in count(2):
            while not heard.empty():
                if isinstance(event := heard.get_nowait(), DrafterLost):
                    over.set()
                    return event.why
            streams.send([(address, opened, Open((1,) * told, Sampling(), Plan(), Vocabulary(9), 8))])
            await asyncio.sleep(0.01)
    raise AssertionError("no such number")


async def test_a_drafter_that_reads_nothing_and_says_nothing_all_the_time_is_lost() -> None:
    why = await why_lost_in_the_end(lambda opened: b"", 1, 0.5)
    assert why == "silent for 0.5 s and more with an answer due"


async def test_a_drafter_that_reads_nothing_and_seems_to_answer_is_lost_once_too_much_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(specsplit_verifier.drafters.streams, "MAX_UNREAD", 2**20)

    answered = 0

    def answers(opened: int) -> bytes:
        """No more than an honest one says, however slow this machine is."""
        nonlocal answered
        new, answered = range(answered + 1, opened + 1), opened
        return draft_response([(number, Grow(0, resting=True)) for number in new]).SerializeToString()

    why = await why_lost_in_the_end(answers, 100_000, 1.0)
    assert re.fullmatch(r"it leaves [\d,]+ bytes of what it is told unread", why)


async def test_a_drafter_that_sends_what_is_no_message_is_lost_with_that_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert (await why_lost(GARBAGE)).startswith("the peer sent what is not a DraftResponse")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_drafter_that_sends_too_many_events_or_too_many_bad_ones_is_lost() -> None:
    grow = drafter_pb2.DraftResponseEvent(session_id=1, grow=drafter_pb2.GrowEvent())
    many = drafter_pb2.DraftResponse(events=[grow] * (MAX_EVENTS + 1))
    assert "events: has " in await why_lost(many.SerializeToString())
    bad = drafter_pb2.DraftResponse(events=[drafter_pb2.DraftResponseEvent()] * (MAX_MALFORMED_EVENTS + 1))
    assert "malformed" in await why_lost(bad.SerializeToString())


async def worked_on(message: Callable[[int], bytes]) -> tuple[DrafterLost, StreamStatistics, int]:
    """How a drafter is lost that floods one session, what had come of it until then, and the events that the engine was given."""
    events = 0
    async with flooding(message) as drafter, streaming() as (streams, heard), asyncio.timeout(20):
        streams.send([(drafter.address, 1, OPEN)])
        while isinstance(event := await heard.get(), FromDrafter):
            events += len(event.events)
    return event, streams.statistics[drafter.address], events


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("unknown", "it speaks of session 1099511629823, which it was never told of"),
        ("known", "a message of 2,048 events, and it may send 100 more now; each open, .* allows 100 "),
        ("huge", r"a message of 1\d,\d\d\d,\d\d\d bytes, and it may send \d+,\d+ more now"),
        ("large", "one grow has 12,288 nodes and new edges, expected at most 8,192, which is twice max_nodes"),
        ("small", "a message of 1 events that bring nothing, and it may send 0 more now; each open, .* allows 4 "),
        ("padded", r"a message of 15,\d\d\d,\d\d\d bytes"),
        ("read", "a message of 2,048 events, and it may send 100 more now; each open, .* allows 100 "),
    ],
)
async def test_a_drafter_that_floods_is_dropped_before_much_of_it_is_worked_on(kind: str, why: str) -> None:
    lost, statistics, events = await worked_on(KINDS[kind])
    assert lost.dropped and re.search(why, lost.why), lost.why
    assert statistics.drops == 1
    assert events == statistics.events_received <= (4 if kind == "small" else 0)
    assert statistics.messages_received == events, "what is too much is not read"


async def test_what_was_meant_for_a_lost_stream_is_not_sent_on_the_next_one() -> None:
    told: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    numbers = count(1)

    async def draft(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        number = next(numbers)
        async for request in requests:
            if number == 1:
                return
            for event in drafter_pb2.DraftRequest.FromString(request).events:
                told.put_nowait((event.session_id, event.WhichOneof("event") or ""))
        yield b""

    commit = Commit(1, 0, (3,))
    async with served(draft) as address, streaming() as (streams, heard):
        streams.send([(address, 7, OPEN)])
        assert isinstance(await heard.get(), DrafterLost)
        old = [(address, 7, event) for event in (commit, Plan(), Features(0, 1, b""), Close())]
        streams.send([*old, (address, 3, OPEN), *old, (address, 3, commit), (address, 3, Close()), *old])
        streams.send([(address, 7, OPEN), (address, 7, commit)])
        first = [(1, "open"), (1, "commit"), (1, "close")]
        assert [await told.get() for _ in range(5)] == [*first, (2, "open"), (2, "commit")]


async def test_what_was_said_of_a_session_before_it_was_closed_is_not_of_what_was_opened_since() -> None:
    """It was on its way when the session was preempted, and came when it ran again."""

    async def draft(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        opened: list[int] = []
        async for request in requests:
            for event in drafter_pb2.DraftRequest.FromString(request).events:
                opened += [event.session_id] if event.HasField("open") else []
            if len(opened) == 3:
                first, other, again = opened
                grows = [(first, Grow(0, (9,), (0,), (3,), (-1.0,))), (again, Grow(0)), (other, Grow(0))]
                yield draft_response(grows).SerializeToString()

    async with served(draft) as address, streaming() as (streams, heard):
        streams.send([(address, 7, OPEN), (address, 5, OPEN), (address, 7, Close()), (address, 7, OPEN)])
        message = await heard.get()
    assert isinstance(message, FromDrafter)
    assert [session for session, _ in message.events] == [OVER, 7, 5]
    assert message.openings == 3, "so many were opened when it came"


async def test_a_status_with_which_a_drafter_ends_the_stream_is_told_also_where_writing_notices_it_first() -> None:
    async def refuse(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
        yield b""

    async with served(refuse) as address, dial(address) as channel:
        call: Stream = channel.stream_stream(DRAFT)()

        async def read() -> str:
            return str(await call.read())

        async def write() -> str:
            await call.write(b"")
            raise AssertionError("it was written")

        for job in (read(), write()):
            task = asyncio.create_task(job)
            await asyncio.wait([task])
            assert await why_over(call, task) == "UNAUTHENTICATED: who are you?"
        assert isinstance(task.exception(), asyncio.InvalidStateError), "which says nothing of why"


sizes = st.integers(0, 200)
said = (
    st.builds(lambda size: Features(0, 1, bytes(size)), sizes)
    | st.builds(lambda size: Commit(1, 0, (2**32 - 1,) * (size + 1)), sizes)
    | st.builds(lambda size: Open((2**32 - 1,) * (size + 1), Sampling(), Plan(), Vocabulary(9), 8), sizes)
    | st.just(Close())
)


@given(st.lists(st.tuples(st.integers(1, 4), said)), st.integers(8, 2_000))
def test_messages_to_a_drafter_keep_the_order_and_stay_small_and_are_no_more_than_it_takes(
    events: list[tuple[int, Any]], most: int
) -> None:
    messages = list(packed(events, most))
    assert all(messages) and [event for message in messages for event in message] == events
    for message, after in pairwise(messages):
        assert sum(bytes_of(event) for _, event in [*message, after[0]]) > most // 2
    for message in messages:
        lists = sum(bytes_of(event) for _, event in message)
        assert lists <= most // 2 or len([event for _, event in message if bytes_of(event)]) == 1
        assert sum(len(each.SerializeToString()) for each in draft_request(message).events) <= lists + 100 * len(
            message
        )


def test_no_message_holds_more_events_than_the_other_side_takes() -> None:
    messages = list(packed([(each, Close()) for each in range(2 * MAX_EVENTS + 1)], 2**20))
    assert [len(message) for message in messages] == [MAX_EVENTS, MAX_EVENTS, 1]
    ids = range(2**40, 2**40 + 100)
    grow = Grow(0, tuple(ids), tuple(ids), (2**32 - 1,) * 100, (-1.0,) * 100)
    assert len(draft_response([(1, grow)]).SerializeToString()) <= bytes_of(grow) + 100


async def test_of_very_many_drafters_not_all_are_remembered_and_nothing_that_they_sent_is_lost_in_the_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(specsplit_verifier.drafters.streams, "REMEMBERED", 3)
    async with streaming(drafter_connect_timeout_s=0.01) as (streams, heard):
        for number in range(8):
            address = f"127.0.0.1:{number + 1}"
            streams.send([(address, 1, OPEN)])
            streams.statistics[address].messages_received += 1
            await asyncio.wait_for(heard.get(), 20)
    assert [*streams.statistics] == [OTHERS, "127.0.0.1:6", "127.0.0.1:7", "127.0.0.1:8"]
    assert streams.statistics[OTHERS] == StreamStatistics(messages_received=5)
