"""The streams to drafters: one per drafter, for ever open, carrying every session of the pair in order.

Lives on the event loop. A stream that cannot be opened, breaks, or falls silent while an answer is due is *lost*: the engine hears of
it once, and what is sent there afterwards opens a new stream. One whose drafter causes more work than it was asked for is *dropped*: it
is closed before that work is done, and lost like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import grpc

from specsplit.clock import Clock
from specsplit.draft_events import Open, ToDrafter, ToVerifier
from specsplit.errors import InvalidRequest, SpecsplitError, shortened
from specsplit.features import Features
from specsplit.records import StreamStatistics
from specsplit.rpc import DRAFTER_SERVICE, dial, from_rpc_error
from specsplit.settings import VerifierSettings
from specsplit.speculation import Grow
from specsplit.wire import drafter as wire
from specsplit.wire.packing import bytes_of, packed
from specsplit_verifier.drafters.allowance import Allowance, Overdrawn
from specsplit_verifier.drafters.claims import Claims
from specsplit_verifier.drafters.openings import Openings
from specsplit_verifier.records.events import DrafterLost, FromDrafter

_log = logging.getLogger(__name__)
MAX_UNREAD = 2**28
"""Bytes that a drafter may leave unread of what it is sent, features not counted, of which no more is sent than it has room for."""
EVENT_BYTES = 64
"""Least bytes of an event."""
_SAID = 300
"""Bytes that are kept of the sentence with which a drafter ends the stream."""
_ENDED = "it ended the stream"
"""The reason of a stream that ended in order."""
REMEMBERED = 1024
"""Drafters with statistics of their own. Beyond that the oldest one without a stream is counted among the others."""
OTHERS = ""
"""The address under which drafters without statistics of their own are counted."""

DRAFT: Final = f"/{DRAFTER_SERVICE}/Draft"

Stream: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
Said: TypeAlias = Sequence[tuple[int, ToVerifier | InvalidRequest]]
"""(number of the opening, event of the drafter); InvalidRequest stands for an event that could not be read."""


@dataclass(slots=True, eq=False)
class DrafterStream:
    """One stream to a drafter."""

    address: str
    channel: grpc.aio.Channel
    statistics: StreamStatistics
    claims: Claims
    allowance: Allowance
    openings: Openings = field(default_factory=Openings)
    """The numbers of sessions, here and in `claims`, `allowance` and `unsent`."""
    unsent: list[tuple[int, ToDrafter]] = field(default_factory=list[tuple[int, ToDrafter]])
    unread: int = 0
    """Bytes that are queued, or that the transport has not taken yet."""
    more: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    dropped: bool = False
    """True once it is closed because its drafter causes too much work."""

    def read(self, data: bytes) -> Said:
        """Parse the events of a message. Raises SpecsplitError for bytes that are no message or too long, and Overdrawn."""
        try:
            self.allowance.parse(len(data))
            message = wire.draft_response_message(data)
            self.allowance.read(wire.bulk_of(message))
        except Overdrawn:
            self.dropped = True
            raise
        events = wire.draft_response_events(message)
        self.allowance.heard(events)
        self.statistics.messages_received += 1
        self.statistics.events_received += len(events)
        self.statistics.bytes_received += len(data)
        self.statistics.nodes_received += sum(len(event.ids) for _, event in events if isinstance(event, Grow))
        return events


class DrafterStreams:
    """The streams to all drafters of this verifier, by address."""

    def __init__(
        self, settings: VerifierSettings, clock: Clock, on_event: Callable[[FromDrafter | DrafterLost], None]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_event = on_event
        self._streams: dict[str, DrafterStream] = {}
        self._openings = 0
        """Opens that were sent, to whatever drafter."""
        self.statistics: dict[str, StreamStatistics] = {}
        """Statistics by drafter address; those of forgotten drafters are in `OTHERS`."""

    def send(self, events: Iterable[tuple[str, int, ToDrafter]]) -> None:
        """Queue (drafter address, session, event)s. Events that are queued together leave as one message per drafter.

        Only an open dials. Anything else for a session that was not opened on the drafter's stream belongs to one that was lost, and goes
        with it.
        """
        now = self._clock.now()
        for address, session, event in events:
            stream = self._streams.get(address)
            if isinstance(event, Open):
                self._openings += 1
                stream = stream or self._open(address)
            number = None if stream is None else stream.openings.tell(session, event)
            if stream is None or number is None:
                continue
            stream.unsent.append((number, event))
            stream.unread += _held(event)
            stream.more.set()
            stream.claims.sent(number, event, now)
            stream.allowance.sent(number, event)

    def _open(self, address: str) -> DrafterStream | None:
        try:
            channel = dial(address, self._settings)
        except SpecsplitError as error:
            self._on_event(DrafterLost(address, str(error)))
            return None
        self._forget_idle(address)
        settings, statistics = self._settings, self.statistics.setdefault(address, StreamStatistics())
        claims = Claims(settings.drafter_lost_after_s)
        allowance = Allowance(settings.max_nodes, settings.drafter_allowance)
        stream = DrafterStream(address, channel, statistics, claims, allowance)
        self._streams[address] = stream
        stream.task = asyncio.create_task(self._run(stream), name=f"drafter {address}")
        return stream

    def _forget_idle(self, address: str) -> None:
        """Count a drafter without a stream among the others, if another one comes and there are many."""
        if address in self.statistics or len(self.statistics) < REMEMBERED:
            return
        idle = next((each for each in self.statistics if each != OTHERS and each not in self._streams), None)
        if idle is not None:
            past = self.statistics.pop(idle)
            self.statistics.setdefault(OTHERS, StreamStatistics()).add(past)

    async def _run(self, stream: DrafterStream) -> None:
        why = await self._until_lost(stream)
        lost = DrafterLost(stream.address, why, dropped=stream.dropped, left=why == _ENDED)
        stream.statistics.drops += lost.dropped
        if self._streams.get(stream.address) is stream:
            del self._streams[stream.address]
        self._on_event(lost)
        await stream.channel.close()

    async def _until_lost(self, stream: DrafterStream) -> str:
        """Carry events until the stream is lost; returns why it was."""
        try:
            return await self._talk(stream)
        except SpecsplitError as error:  # what it sent is no message, or one that is too long, or too much
            return str(error)
        except Exception as error:  # noqa: BLE001 (the edge of a task: whatever it was, the engine must hear of the loss)
            _log.exception("the stream to drafter %s failed", stream.address)
            return f"{type(error).__name__}: {error}"

    async def _talk(self, stream: DrafterStream) -> str:
        """Connect and carry events until the stream is lost; returns why it was, or raises SpecsplitError for what the drafter sent."""
        timeout_s = self._settings.drafter_connect_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await stream.channel.channel_ready()
        except TimeoutError:
            return f"no answer within {timeout_s} s of dialling"
        call: Stream = stream.channel.stream_stream(DRAFT)()  # in bytes: what is too much is not parsed
        jobs = (self._read(stream, call), self._write(stream, call), self._watch(stream))
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await why_over(call, next(task for task in tasks if task.done()))  # of several, the one that reads
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stream: DrafterStream, call: Stream) -> str:
        async for data in call:
            events = stream.read(data)
            stream.claims.heard(events, self._clock.now())
            self._on_event(FromDrafter(stream.address, stream.openings.heard(events), self._openings))
        return _ENDED

    async def _write(self, stream: DrafterStream, call: Stream) -> str:
        while True:
            await stream.more.wait()
            stream.more.clear()
            unsent, stream.unsent = stream.unsent, []
            for events in packed(unsent, self._settings.max_message_bytes):
                data = wire.draft_request(events).SerializeToString()
                _count(stream.statistics, len(data), events)
                await call.write(data)
                stream.unread -= sum(_held(event) for _, event in events)

    async def _watch(self, stream: DrafterStream) -> str:
        """Return once the drafter leaves an open or a commit unanswered, or reads nothing -> the reason to count it as dead."""
        patience_s = self._settings.drafter_lost_after_s
        while True:
            due = self._clock.now() + patience_s / 4
            await asyncio.sleep(due - self._clock.now())
            stream.claims.excuse(max(0.0, self._clock.now() - due))
            if stream.claims.overdue(self._clock.now()):
                return f"silent for {patience_s} s and more with an answer due"
            if stream.unread > MAX_UNREAD:
                return f"it leaves {stream.unread:,} bytes of what it is told unread"

    async def close(self) -> None:
        """End every stream."""
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            if stream.task is not None:
                stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in streams if stream.task), return_exceptions=True)
        await asyncio.gather(*(stream.channel.close() for stream in streams))


async def why_over(call: Stream, over: asyncio.Task[str]) -> str:
    """Say why a task of the stream ended. Raises SpecsplitError for what the drafter sent."""
    try:
        return over.result()
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INTERNAL:  # what grpc.aio says of a write to a call that is just ending
            return str(from_rpc_error(error, "the drafter"))
        return _status(error.code(), error.details())
    except asyncio.InvalidStateError:  # how it says that a call is over to whom would write to it
        code = await call.code()
        return _ENDED if code is grpc.StatusCode.OK else _status(code, await call.details())


def _status(code: grpc.StatusCode, details: str | None) -> str:
    return f"{code.name}: {shortened(details or '', _SAID)}"


def _count(statistics: StreamStatistics, message_bytes: int, events: Sequence[tuple[int, ToDrafter]]) -> None:
    statistics.messages_sent += 1
    statistics.bytes_sent += message_bytes
    statistics.feature_tokens_sent += sum(event.count for _, event in events if isinstance(event, Features))
    statistics.feature_bytes_sent += sum(_feature_bytes(event) for _, event in events)


def _held(event: ToDrafter) -> int:
    return EVENT_BYTES + (0 if isinstance(event, Features) else bytes_of(event))


def _feature_bytes(event: ToDrafter) -> int:
    return event.nbytes if isinstance(event, Features) else 0
