"""A verifier's end of DecodeSessions for servicers that say what a test tells them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TypeAlias

from specsplit.errors import SpecsplitError
from specsplit.rpc import Context, to_status_bytes
from specsplit.sessions import Begin, DecodeEvent, Failed, Leave
from specsplit.v1 import verifier_pb2, verifier_pb2_grpc
from specsplit.wire.sessions import Answer, sessions_request_events, sessions_responses

Answers: TypeAlias = "asyncio.Queue[Answer | None]"


@dataclass(eq=False)
class Carrying(verifier_pb2_grpc.VerifierServiceServicer):
    """Answers each session of a stream with what `carried` yields for it, in a task of its own."""

    Decode = verifier_pb2_grpc.VerifierServiceServicer.Decode
    Watch = verifier_pb2_grpc.VerifierServiceServicer.Watch
    UpdateWeights = verifier_pb2_grpc.VerifierServiceServicer.UpdateWeights
    streams: int = field(default=0, init=False)
    """Calls that came."""
    answers: list[Answers] = field(default_factory=list["Answers"], init=False)
    """Of each."""

    def carried(self, begin: Begin) -> AsyncIterator[DecodeEvent]:
        """The events of a session; a SpecsplitError ends it."""
        raise NotImplementedError

    async def DecodeSessions(  # noqa: N802 (the name is the protocol's)
        self, request_iterator: AsyncIterator[verifier_pb2.DecodeSessionsRequest], context: Context
    ) -> AsyncIterator[verifier_pb2.DecodeSessionsResponse]:
        self.streams += 1
        answers: Answers = asyncio.Queue()
        self.answers.append(answers)
        reading = asyncio.create_task(self._read(request_iterator, answers))
        try:
            while (answer := await answers.get()) is not None:
                for message in sessions_responses([answer]):
                    yield message
        finally:
            reading.cancel()

    def break_streams(self) -> None:
        """End the calls, whatever is on them."""
        for answers in self.answers:
            answers.put_nowait(None)

    async def _read(self, requests: AsyncIterator[verifier_pb2.DecodeSessionsRequest], answers: Answers) -> None:
        running: dict[int, asyncio.Task[None]] = {}
        try:
            async for request in requests:
                for session, event in sessions_request_events(request, 2048):
                    if isinstance(event, Begin):
                        running[session] = asyncio.create_task(self._carry(session, event, answers))
                    elif isinstance(event, Leave) and session in running:
                        running[session].cancel()
        finally:
            for task in running.values():
                task.cancel()
            answers.put_nowait(None)

    async def _carry(self, session: int, begin: Begin, answers: Answers) -> None:
        try:
            async for event in self.carried(begin):
                answers.put_nowait((session, event, ()))
        except SpecsplitError as error:
            answers.put_nowait((session, Failed(to_status_bytes(error)), ()))
