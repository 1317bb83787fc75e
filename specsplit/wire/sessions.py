"""verifier.proto: many sessions on one stream between coordinator and verifier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from specsplit.errors import InvalidRequest
from specsplit.sessions import Begin, DecodeEvent, Failed, Leave, Tokens
from specsplit.v1 import verifier_pb2 as pb
from specsplit.wire.events import read_events
from specsplit.wire.limits import MAX_EVENTS, MAX_TOKENS
from specsplit.wire.reading import intact
from specsplit.wire.scan import SCANNED_BYTES
from specsplit.wire.verifier import decode_from_wire, decode_to_wire, events_within, response_into

FULL_BYTES: Final = SCANNED_BYTES - 1024
"""A message of so many bytes gets no further event: its reader would have to scan it, which costs more than a second message."""

RequestEvent: TypeAlias = pb.DecodeSessionsRequestEvent
ToVerifier: TypeAlias = Begin | Leave
Answer: TypeAlias = tuple[int, DecodeEvent | Failed, Sequence[Tokens]]
"""Session, event, and the tokens before it that were held back."""
Said: TypeAlias = Sequence[DecodeEvent] | Failed
"""What one event of a verifier holds."""


def begin_event(session: int, begin: Begin) -> pb.DecodeSessionsRequestEvent:
    request = decode_to_wire(begin.request)
    event = pb.BeginEvent(request=request, timeout_s=begin.timeout_s, traceparent=begin.traceparent)
    return pb.DecodeSessionsRequestEvent(session_id=session, begin=event)


def leave_event(session: int) -> pb.DecodeSessionsRequestEvent:
    return pb.DecodeSessionsRequestEvent(session_id=session, cancel=pb.CancelEvent())


def sessions_requests(events: Iterable[RequestEvent], most_bytes: int) -> Iterator[pb.DecodeSessionsRequest]:
    """Put them in order into messages of `most_bytes` at most. An event that is longer by itself is a message of its own."""
    message, size = pb.DecodeSessionsRequest(), 0
    for event in events:
        more = event.ByteSize()
        if message.events and (size + more > most_bytes or len(message.events) == MAX_EVENTS):
            yield message
            message, size = pb.DecodeSessionsRequest(), 0
        message.events.append(event)
        size += more
    if message.events:
        yield message


def sessions_request_events(
    message: pb.DecodeSessionsRequest, vocab_size: int, max_context: int = MAX_TOKENS
) -> list[tuple[int, ToVerifier | InvalidRequest]]:
    """The events of one message; a malformed one comes out as the InvalidRequest that says why, so that only its session ends.

    Raises InvalidRequest for too many events, or too many malformed ones.
    """
    return read_events(intact(message).events, partial(_request_from_wire, vocab_size, max_context))


def _request_from_wire(vocab_size: int, max_context: int, event: pb.DecodeSessionsRequestEvent) -> ToVerifier:
    match event.WhichOneof("event"):
        case "begin":
            return _begin_from_wire(event.begin, vocab_size, max_context)
        case "cancel":
            return Leave()
        case _:
            raise InvalidRequest("event", "is absent, expected begin or cancel")


def _begin_from_wire(message: pb.BeginEvent, vocab_size: int, max_context: int) -> Begin:
    request = decode_from_wire(message.request, vocab_size, max_context)
    return Begin(request, message.timeout_s if message.HasField("timeout_s") else None, message.traceparent)


def sessions_responses(answers: Iterable[Answer]) -> Iterator[pb.DecodeSessionsResponse]:
    """Write them in order, as one message unless that would be long. An event that is long by itself is a message of its own."""
    message, size = pb.DecodeSessionsResponse(), 0
    for session, event, earlier in answers:
        more = _answer_into(message, session, event, earlier)
        if more > FULL_BYTES and size:
            last = pb.DecodeSessionsResponse(events=message.events[-1:])
            del message.events[-1]
            yield message
            message = last
        size += more
        if size > FULL_BYTES or len(message.events) == MAX_EVENTS:
            yield message
            message, size = pb.DecodeSessionsResponse(), 0
    if size:
        yield message


def _answer_into(
    message: pb.DecodeSessionsResponse, session: int, event: DecodeEvent | Failed, earlier: Sequence[Tokens]
) -> int:
    """Add an event -> its bytes."""
    written = message.events.add(session_id=session)
    if isinstance(event, Failed):
        written.failed.status = event.status
    else:
        response_into(written.response, event, earlier)
    return written.ByteSize()


def sessions_response_events(message: pb.DecodeSessionsResponse) -> list[tuple[int, Said | InvalidRequest]]:
    """What each event of one message holds; a malformed one comes out as the InvalidRequest that says why.

    Raises InvalidRequest for too many events, or too many malformed ones, and Incompatible if the message is none at all.
    """
    return read_events(intact(message).events, _response_from_wire)


def _response_from_wire(event: pb.DecodeSessionsResponseEvent) -> Said:
    match event.WhichOneof("event"):
        case "response":
            return events_within(event.response)
        case "failed":
            if not event.failed.status:
                raise InvalidRequest("failed.status", "is empty, expected a status")
            return Failed(event.failed.status)
        case _:
            raise InvalidRequest("event", "is absent, expected response or failed")
