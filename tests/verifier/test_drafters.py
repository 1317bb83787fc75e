"""Drafters that misbehave in every way a peer can, over real gRPC: the text stays, and only the offended session loses its drafts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from specsplit.membership import HandOver, Roster
from specsplit.sessions import DecodeRequest
from specsplit.v1 import drafter_pb2, drafter_pb2_grpc
from specsplit.values import Endpoint, Stopping
from tests.support.drafting import drafter_process
from tests.support.eventually import eventually
from tests.support.toys import letter, random_target
from tests.verifier.conftest import decode, losses, recorded, verifier_over

pytestmark = pytest.mark.usefixtures("forked")

Answer: TypeAlias = Callable[[drafter_pb2.DraftRequestEvent], drafter_pb2.DraftResponseEvent | None]


class Scripted(drafter_pb2_grpc.DrafterServiceServicer):
    """Answers every event as a function says, and keeps what it was told."""

    UpdateWeights = drafter_pb2_grpc.DrafterServiceServicer.UpdateWeights

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[drafter_pb2.DraftRequestEvent] = []

    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        async for message in request_iterator:
            self.seen += message.events
            answers = [answer for event in message.events if (answer := self.answer(event)) is not None]
            if answers:
                yield drafter_pb2.DraftResponse(events=answers)

    async def GetDrafterInfo(  # noqa: N802
        self, request: drafter_pb2.GetDrafterInfoRequest, context: grpc.aio.ServicerContext
    ) -> drafter_pb2.GetDrafterInfoResponse:
        raise AssertionError("no verifier asks")

    def closed(self) -> set[int]:
        """Sessions it was told to close."""
        return {event.session_id for event in self.seen if event.WhichOneof("event") == "close"}


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[tuple[Scripted, Endpoint]]:
    servicer = Scripted(answer)
    server = grpc.aio.server()
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, Endpoint("scripted", f"127.0.0.1:{port}")
    finally:
        await server.stop(0)


def grow(session: int, **fields: object) -> drafter_pb2.DraftResponseEvent:
    return drafter_pb2.DraftResponseEvent(session_id=session, grow=drafter_pb2.GrowEvent(**fields))  # pyright: ignore[reportArgumentType]


BROKEN = {
    "refused as it is read": {"ids": [1, 2], "parents": [0], "token_ids": [98], "edges": [-0.1]},
    "refused as it is queued": {
        "ids": list(range(1, 41)), "parents": [0] * 40, "token_ids": list(range(40)), "edges": [-0.1] * 40,
    },
    "refused by the mirror": {"ids": [1], "parents": [5], "token_ids": [98], "edges": [-0.1]},
}  # fmt: skip
"""One for each place that refuses grows: lists of unequal length, more nodes than allowed, and a parent that is none."""


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_malformed_grow_ends_drafting_for_its_own_session_only(alphabet: Path, fault: str) -> None:
    def answer(event: drafter_pb2.DraftRequestEvent) -> drafter_pb2.DraftResponseEvent | None:
        if event.WhichOneof("event") != "open":
            return None
        if event.open.token_ids[-1] == letter("a"):
            return grow(event.session_id, **BROKEN[fault])
        chain = [letter("n") + i for i in range(6)]
        return grow(
            event.session_id,
            ids=[1, 2, 3, 4, 5, 6],
            parents=[0, 1, 2, 3, 4, 5],
            token_ids=chain,
            edges=[-0.1] * 6,
            resting=True,
        )

    async with (
        scripted(answer) as (drafter, endpoint),
        verifier_over(alphabet, max_nodes=32, draft_ahead=False, wait_budget_us=5_000_000) as verifier,
    ):
        broken, sound = await asyncio.gather(
            decode(verifier, DecodeRequest("broken", list(b"a"), stopping=Stopping(20), drafter=endpoint)),
            decode(verifier, DecodeRequest("sound", list(b"m"), stopping=Stopping(6), drafter=endpoint)),
        )
        await asyncio.sleep(0.1)
    assert bytes(broken[0]) == b"bcdefghijklmnopqrstu" and broken[1].speculation.accepted == 0
    assert bytes(sound[0]) == b"nopqrs" and sound[1].speculation.accepted >= 4
    assert drafter.closed() == {1, 2}, "both were told that it is over"


async def test_a_drafter_that_never_answers_is_lost_and_costs_little(alphabet: Path) -> None:
    async with (
        scripted(lambda event: None) as (_, endpoint),
        verifier_over(alphabet, drafter_lost_after_s=0.2) as verifier,
    ):
        records = recorded(verifier)
        request = DecodeRequest("r", list(b"a"), stopping=Stopping(300), drafter=endpoint)
        tokens, end = await decode(verifier, request)
        again, _ = await decode(verifier, DecodeRequest("r", list(b"a"), stopping=Stopping(100), drafter=endpoint))
    assert len(tokens) == 300 and len(again) == 100 and end.speculation.accepted == 0
    assert sum(record.waited_us for record in records) < 1e6


async def test_a_drafter_that_is_not_there_is_reported_lost(alphabet: Path) -> None:
    async with verifier_over(alphabet, drafter_connect_timeout_s=0.2, paced_step_base_ms=3.0) as verifier:
        request = DecodeRequest("r", list(b"a"), stopping=Stopping(150), drafter=Endpoint("ghost", "127.0.0.1:9"))
        lost = losses(verifier)
        tokens, _ = await decode(verifier, request)
        assert set(lost) == {"127.0.0.1:9"}, (
            "more than once if the text takes longer than what a drafter cools down for"
        )
    assert tokens[:3] == list(b"bcd")


async def test_a_session_that_is_cancelled_leaves_no_answer_due(alphabet: Path) -> None:
    async with (
        scripted(lambda event: None) as (drafter, endpoint),
        verifier_over(alphabet, drafter_lost_after_s=0.2) as verifier,
    ):
        lost = losses(verifier)
        events = verifier.decode(DecodeRequest("r", list(b"a"), stopping=Stopping(300), drafter=endpoint))
        await anext(events)
        await events.aclose()
        await asyncio.sleep(0.6)
        assert drafter.closed() == {1}
        assert not lost


async def test_an_address_that_cannot_be_dialled_harms_nobody_else(alphabet: Path) -> None:
    async with verifier_over(alphabet, paced_step_base_ms=2.0) as verifier:
        results = await asyncio.gather(
            decode(
                verifier, DecodeRequest("bad", list(b"a"), stopping=Stopping(30), drafter=Endpoint("x", "nonsense"))
            ),
            decode(verifier, DecodeRequest("good", list(b"b"), stopping=Stopping(30))),
        )
    assert [len(tokens) for tokens, _ in results] == [30, 30]


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION])
async def test_a_session_that_a_drafter_cannot_take_goes_to_another(alphabet: Path, code: grpc.StatusCode) -> None:
    def refuse(event: drafter_pb2.DraftRequestEvent) -> drafter_pb2.DraftResponseEvent | None:
        if event.WhichOneof("event") != "open":
            return None
        cannot = drafter_pb2.RefuseEvent(code=code.value[0], message="cannot")
        return drafter_pb2.DraftResponseEvent(session_id=event.session_id, refuse=cannot)

    async with (
        scripted(refuse) as (unable, first),
        scripted(lambda event: None) as (other, second),
        verifier_over(alphabet, paced_step_base_ms=20.0) as verifier,
    ):
        verifier.engine.post(Roster((first, second)))
        await decode(verifier, DecodeRequest("r", list(b"a"), stopping=Stopping(100), drafter=first))
        await asyncio.sleep(0.1)
    assert unable.closed() == other.closed() == {1}
    assert other.seen[0].WhichOneof("event") == "open"
    assert other.seen[0].open.token_ids[0] == letter("a"), "it is opened on everything committed so far"


async def test_a_drafter_of_another_vocabulary_refuses_and_names_both_sides(
    alphabet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = random_target(tmp_path / "other", 16)
    async with (
        drafter_process("standalone", model=other) as endpoint,
        verifier_over(alphabet, paced_step_base_ms=3.0) as verifier,
    ):
        with caplog.at_level(logging.WARNING):
            request = DecodeRequest("r", list(b"a"), stopping=Stopping(400), drafter=endpoint)
            tokens, _ = await decode(verifier, request)  # for a second at least: the drafter may be slow to answer
    assert tokens[:3] == list(b"bcd") and len(tokens) == 400
    assert "vocabulary mismatch" in caplog.text and "16 tokens" in caplog.text and "264 tokens" in caplog.text


async def test_a_session_that_is_handed_over_goes_on_with_the_other_drafter_and_nobody_is_lost(alphabet: Path) -> None:
    def silent(event: drafter_pb2.DraftRequestEvent) -> drafter_pb2.DraftResponseEvent | None:
        if event.WhichOneof("event") == "close":
            return None
        return grow(event.session_id, commits=event.commit.number, resting=True)

    async with (
        scripted(silent) as (first, source),
        scripted(silent) as (second, target),
        verifier_over(alphabet, wait_budget_us=0) as verifier,
    ):
        records, lost = recorded(verifier), losses(verifier)
        longer = asyncio.create_task(
            decode(verifier, DecodeRequest("l", list(b"abcdef"), stopping=Stopping(400), drafter=source))
        )
        shorter = asyncio.create_task(
            decode(verifier, DecodeRequest("s", list(b"ab"), stopping=Stopping(400), drafter=source))
        )
        await eventually(lambda: sum(event.WhichOneof("event") == "commit" for event in first.seen) >= 4)
        verifier.engine.post(HandOver(source.address, target, 1))
        tokens = [bytes(tokens) for tokens, *_ in await asyncio.gather(longer, shorter)]
        while len(first.closed()) < 2 or not second.closed():  # they leave behind the last tokens
            await asyncio.sleep(0.01)
    circle = bytes(range(ord("a"), ord("z") + 1)) * 20
    assert [circle.index(text[:20]) for text in tokens] == [6, 2]
    opened = [event.open for event in second.seen if event.WhichOneof("event") == "open"]
    assert [each.prompt_tokens for each in opened] == [2], "the one with the shorter text"
    assert len(first.closed()) == 2 and len(second.closed()) == 1
    assert sum(record.drafts.hand_overs for record in records) == 1
    assert sum(record.drafts.failovers for record in records) == 0
    assert not lost
