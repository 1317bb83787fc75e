"""The stream to a verifier that carries the sessions of this coordinator there.

It is read as fast as it comes, whatever becomes of a session, so that none holds up another; what has come is told in the turn of its
session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc

from specsplit.errors import DeadlineExceeded, InvalidRequest, SpecsplitError
from specsplit.generation.gathering import Gathering
from specsplit.generation.inbox import Inbox
from specsplit.rpc import from_status_bytes
from specsplit.sessions import Begin, DecodeEvent, Failed, Finished, Tokens
from specsplit.wire.sessions import (
    RequestEvent,
    Said,
    begin_event,
    leave_event,
    sessions_requests,
    sessions_response_events,
)
from specsplit_coordinator.members.verifier_session import Take

if TYPE_CHECKING:
    from specsplit.v1 import verifier_pb2 as pb

    Call: TypeAlias = grpc.aio.StreamStreamCall[pb.DecodeSessionsRequest, pb.DecodeSessionsResponse]

_log = logging.getLogger(__name__)
FULL_BYTES: Final = 2**20
"""Begins that are put into one message, and the longest that goes this way: a longer one would hold up others, and end all with it if the
verifier does not take it."""


class Unknown(Exception):
    """The verifier does not know the call: it is of an older build."""


class TooLong(Exception):
    """The session begins with a message that is better sent in a call of its own."""


class SessionStream:
    """One DecodeSessions call, from its first session until it breaks or its channel is closed."""

    def __init__(
        self,
        call: Call,
        ended: Callable[[Exception], Exception],
        most_bytes: int,
        gathering: Gathering,
    ) -> None:
        """`ended` makes the error that a session has of what ended the call; of a call that ended in order too, for sessions that had not.

        `most_bytes`: what the transport lets through. `gathering`: says when what has come for a session is told.
        """
        self._call = call
        self._ended = ended
        self._full_bytes = min(FULL_BYTES, most_bytes // 2)
        self._numbers = count(1)
        self._gathering = gathering
        self._inboxes: dict[int, Inbox[DecodeEvent]] = {}
        self._unsent: list[RequestEvent] = []
        self._more = asyncio.Event()
        self.over = False
        """It carries nothing more."""
        self._heard = False
        self.task = asyncio.create_task(self._run())
        """Ends when the call has."""

    @contextmanager
    def session(self, begin: Begin, take: Take, overdue: DeadlineExceeded) -> Generator[Inbox[DecodeEvent]]:
        """Begin a session; it is left with the block. `overdue`: how it ends when its time is over. Raises TooLong."""
        number = next(self._numbers)
        event = begin_event(number, begin)
        if event.ByteSize() > self._full_bytes:
            raise TooLong
        inbox = self._inboxes[number] = Inbox[DecodeEvent](self._gathering, take)
        self._send(event)
        timer = None
        if begin.timeout_s is not None:
            timer = asyncio.get_running_loop().call_later(begin.timeout_s, inbox.end, overdue)
        try:
            yield inbox
        finally:
            if timer is not None:
                timer.cancel()
            if self._inboxes.pop(number, None) is not None:
                self._send(leave_event(number))

    def cancel(self) -> None:
        """End the call, and with it every session."""
        self._call.cancel()

    def _send(self, event: RequestEvent) -> None:
        if not self.over:
            self._unsent.append(event)
            self._more.set()

    async def _run(self) -> None:
        writer = asyncio.create_task(self._write())
        try:
            failure = await self._read()
        finally:
            self.over = True
            writer.cancel()
            self._call.cancel()
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            inbox.end(failure(self))

    async def _read(self) -> Callable[[SessionStream], Exception]:
        """Read until the call ends -> what makes the error of a session that was not over by then."""
        error: Exception
        try:
            async for message in self._call:
                self._heard = True
                for number, said in sessions_response_events(message):
                    self._hear(number, said)
            error = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata())
        except (grpc.aio.AioRpcError, SpecsplitError) as caught:
            error = caught
        except Exception:  # noqa: BLE001 (the edge of a task: without it the sessions of the stream would wait for ever)
            _log.exception("the stream to a verifier could not be read")
            error = SpecsplitError("internal error in a stream to a verifier; the log of the coordinator says more")
        except asyncio.CancelledError:  # the call was, on this side
            error = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata())
        unknown = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED
        if unknown and not self._heard:
            return lambda stream: Unknown()
        return lambda stream: stream._ended(error)

    def _hear(self, number: int, said: Said | InvalidRequest) -> None:
        inbox = self._inboxes.get(number)
        if inbox is None:  # it was left meanwhile
            return
        if isinstance(said, Failed):
            del self._inboxes[number]
            try:
                inbox.end(from_status_bytes(said.status))
            except InvalidRequest as error:
                inbox.end(self._ended(error))
        elif isinstance(said, InvalidRequest):
            self._inboxes.pop(number).end(self._ended(said))
            self._send(leave_event(number))
        else:
            inbox.put(said, at_once=not isinstance(said[-1], Tokens))
            if isinstance(said[-1], Finished):
                del self._inboxes[number]
                inbox.end()

    async def _write(self) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the call is over, which its reader hears
            while True:
                await self._more.wait()
                self._more.clear()
                unsent, self._unsent = self._unsent, []
                for message in sessions_requests(unsent, self._full_bytes):
                    await self._call.write(message)
