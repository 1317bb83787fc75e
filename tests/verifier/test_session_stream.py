"""Many sessions on one stream of a real verifier, whose target's output can be worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from specsplit.errors import (
    DeadlineExceeded,
    InvalidRequest,
    SpecsplitError,
    Unavailable,
)
from specsplit.identity import digest
from specsplit.rpc import Service, dial, from_rpc_error, from_status_bytes, ongoing, wait_until_serving
from specsplit.sessions import Begin, DecodeRequest, Failed, Finished, Tokens
from specsplit.settings import TransportSettings, VerifierSettings
from specsplit.v1 import verifier_pb2, verifier_pb2_grpc
from specsplit.values import Constraint, ConstraintKind, Stopping
from specsplit.wire.sessions import (
    RequestEvent,
    Said,
    begin_event,
    leave_event,
    sessions_requests,
    sessions_response_events,
)
from specsplit_verifier.edge.service import Served, service_of
from tests.support.eventually import eventually
from tests.support.toys import letter

SLOW: dict[str, Any] = {"paced_step_base_ms": 20.0}
"""A step takes long enough for something to happen meanwhile."""


class Caller:
    """One stream, and what has come on it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = verifier_pb2_grpc.VerifierServiceStub(channel).DecodeSessions()
        self.said: dict[int, list[Said]] = {}
        self.sizes: list[int] = []
        """Events of each message."""
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.call:
            events = sessions_response_events(message)
            self.sizes.append(len(events))
            for session, said in events:
                assert not isinstance(said, InvalidRequest)
                self.said.setdefault(session, []).append(said)

    async def send(self, *events: RequestEvent) -> None:
        """In one message."""
        for message in sessions_requests(events, 2**20):
            await self.call.write(message)

    def tokens(self, session: int) -> str:
        events = [event for said in self.said.get(session, ()) if not isinstance(said, Failed) for event in said]
        return bytes(token for event in events if isinstance(event, Tokens) for token in event.tokens).decode()

    def over(self, *sessions: int) -> bool:
        return all(session in self.said and self._ended(self.said[session][-1]) for session in sessions)

    @staticmethod
    def _ended(said: Said) -> bool:
        return isinstance(said, Failed) or isinstance(said[-1], Finished)

    def failure(self, session: int) -> SpecsplitError:
        last = self.said[session][-1]
        assert isinstance(last, Failed)
        return from_status_bytes(last.status)


@asynccontextmanager
async def calling(
    folder: Path, status: int = 0, transport: TransportSettings | None = None, **settings: Any
) -> AsyncIterator[tuple[Service[Served], Caller]]:
    service = service_of(VerifierSettings(model=folder, **{"listen": "127.0.0.1:0", "adaptive": "static", **settings}))
    await service.start()
    running = asyncio.create_task(service.serve(signals=False))
    try:
        async with asyncio.timeout(60), dial(service.server.bound, transport) as channel:
            await wait_until_serving(channel, 30)
            yield service, Caller(channel)
    finally:
        service.server.leave()
        service.server.leave()
        assert await asyncio.wait_for(running, 20) == status


def begin(session: int, prompt: str, most: int = 5, timeout_s: float | None = None, **options: Any) -> RequestEvent:
    stopping = Stopping(most) if most else Stopping()
    return begin_event(
        session, Begin(DecodeRequest(f"r{session}", [*map(letter, prompt)], stopping=stopping, **options), timeout_s)
    )


def lengths(said: Sequence[Said]) -> list[int]:
    return [len(each) for each in said if not isinstance(each, Failed)]


async def test_a_step_of_many_sessions_is_one_message_and_each_gets_what_is_its_own(alphabet: Path) -> None:
    async with calling(alphabet, **SLOW) as (_, caller):
        await caller.send(*(begin(each, letters, 8) for each, letters in enumerate("abcdef", 1)))
        await eventually(lambda: caller.over(*range(1, 7)))
        assert [caller.tokens(each) for each in (1, 2, 6)] == ["bcdefghi", "cdefghij", "ghijklmn"]
        assert len(caller.sizes) < 16, "8 steps, and the ends"
        assert max(caller.sizes) >= 6


async def test_what_cannot_begin_ends_with_its_own_error_and_the_others_go_on(alphabet: Path) -> None:
    async with calling(alphabet, **SLOW) as (_, caller):
        told = begin(7, "a")
        told.begin.request.prompt_logprobs = 0
        await caller.send(
            begin(1, "a", 40),
            begin(2, "a" * 600),
            begin(3, ""),
            RequestEvent(session_id=4),
            begin(5, "a", constraint=Constraint(ConstraintKind.JSON_SCHEMA, "{")),
            begin(6, "a", timeout_s=0.1, most=400),
            told,
            begin(8, "x", 3),
            begin(8, "y", 3),
        )
        await eventually(lambda: caller.over(*range(1, 9)))
        assert caller.tokens(1) == "bcdefghijklmnopqrstuvwxyzabcdefghijklmno"
        fields = {
            each: error.field for each in (2, 3, 4, 7) if isinstance(error := caller.failure(each), InvalidRequest)
        }
        assert fields == {2: "token_ids", 3: "token_ids", 4: "event", 7: "prompt_logprobs"}
        assert isinstance(caller.failure(5), SpecsplitError)
        assert isinstance(caller.failure(6), DeadlineExceeded)
        assert str(caller.failure(8)) == "session_id: is 8, expected more than 8", (
            "and with it the one that had the name"
        )
        assert not caller.reading.done()


async def test_a_session_that_is_left_is_freed_and_gets_nothing_more(alphabet: Path) -> None:
    async with calling(alphabet, **SLOW) as (service, caller):
        await caller.send(begin(1, "a", 400), begin(2, "b", 400))
        await eventually(lambda: caller.tokens(1) and caller.tokens(2))
        await caller.send(leave_event(1), leave_event(77))
        verifier = served(service).verifier
        await eventually(lambda: verifier.load().sessions == 1)
        had = caller.tokens(1)
        before = len(caller.tokens(2))
        await eventually(lambda: len(caller.tokens(2)) > before + 3)
        assert caller.tokens(1) == had
        caller.call.cancel()
        await eventually(lambda: verifier.load().sessions == 0)


async def test_tokens_are_held_back_by_each_session_for_itself(alphabet: Path) -> None:
    async with calling(alphabet, **SLOW) as (_, caller):
        await caller.send(begin(1, "a", 9, stream_interval=4), begin(2, "a", 9))
        await eventually(lambda: caller.over(1, 2))
        assert caller.tokens(1) == caller.tokens(2) == "bcdefghij"
        assert lengths(caller.said[1]) == [1, 4, 4, 1]
        assert len(caller.said[2]) >= 9


async def test_what_was_held_back_comes_before_the_failure(alphabet: Path) -> None:
    async with calling(alphabet, 1, **SLOW) as (service, caller):
        await caller.send(begin(1, "a", 400, stream_interval=1000))
        await eventually(lambda: caller.tokens(1))
        await asyncio.sleep(0.1)
        served(service).verifier.died("the device is gone")
        await eventually(lambda: caller.over(1))
        assert len(caller.tokens(1)) > 1
        assert isinstance(caller.failure(1), Unavailable) and "the device is gone" in str(caller.failure(1))


async def test_a_verifier_that_drains_ends_what_runs_in_order_takes_no_more_and_then_ends_the_stream(
    alphabet: Path,
) -> None:
    async with calling(alphabet, **SLOW) as (service, caller):
        await caller.send(begin(1, "a", 30))
        await eventually(lambda: caller.tokens(1))
        service.server.drain()
        await asyncio.sleep(0)
        await caller.send(begin(2, "b"))
        await eventually(lambda: caller.over(1, 2))
        assert len(caller.tokens(1)) == 30
        assert isinstance(caller.failure(2), Unavailable) and "draining" in str(caller.failure(2))
        await asyncio.wait_for(caller.reading, 10)
        assert await caller.call.code() is grpc.StatusCode.OK


async def test_a_caller_that_closes_its_side_ends_its_sessions(alphabet: Path) -> None:
    async with calling(alphabet, **SLOW) as (service, caller):
        await caller.send(begin(1, "a", 400))
        await eventually(lambda: caller.tokens(1))
        await caller.call.done_writing()
        await asyncio.wait_for(caller.reading, 10)
        await eventually(lambda: served(service).verifier.load().sessions == 0)


async def test_what_is_no_message_ends_the_stream(alphabet: Path) -> None:
    async with calling(alphabet, **SLOW) as (_, caller):
        crowded = verifier_pb2.DecodeSessionsRequest(events=[RequestEvent(session_id=1)] * 65)
        await caller.send(begin(1, "a", 400))
        await caller.call.write(crowded)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(caller.reading, 10)
        error = from_rpc_error(caught.value)
        assert isinstance(error, InvalidRequest) and error.field == "events"


async def test_the_stream_of_a_coordinator_that_is_struck_out_of_the_files_ends_and_its_sessions_are_freed(
    alphabet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ongoing, "LOOK_EVERY_S", 0.02)
    known, shown = tmp_path / "tokens.toml", tmp_path / "token"
    shown.write_text("secret\n")
    known.write_text(f'[coordinator]\nroles = ["member"]\nsha256 = "{digest("secret")}"\n')
    transport = TransportSettings(token_file=shown)
    async with calling(alphabet, transport=transport, tokens_file=known, **SLOW) as (service, caller):
        await caller.send(begin(1, "a", 400))
        await eventually(lambda: caller.tokens(1))
        known.write_text(known.read_text().replace("member", "client"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(caller.reading, 10)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await eventually(lambda: served(service).verifier.load().sessions == 0)


def served(service: Service[Served]) -> Served:
    found = vars(service)["_backend"]
    assert isinstance(found, Served)
    return found
