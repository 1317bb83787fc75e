"""Which gRPC status each error is, and back.

A peer's status becomes the same error on this side (but for LoadError, which ends a service at start and would come back
as its neighbour Incompatible, RankLost, which comes back as Unavailable, and Unread, which comes back as Exhausted).
Details beside the sentence follow google.rpc: BadRequest names the field of an InvalidRequest, ErrorInfo has the reason of a
ContextExceeded and of a TargetFailed, RetryInfo carries the hint of an Exhausted.

A status travels as metadata, of which a peer takes 8 KiB: the sentence once in a header, where what is not ASCII takes three times its
bytes, and twice in the details, in base 64. A longer one would turn the status into the transport's own complaint, so it is cut.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, cast

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2  # pyright: ignore[reportMissingTypeStubs]
from grpc_status import rpc_status

from specsplit.errors import (
    Cancelled,
    ContextExceeded,
    DeadlineExceeded,
    Exhausted,
    IllegalEvent,
    Incompatible,
    InvalidRequest,
    LoadError,
    NotFound,
    PermissionDenied,
    RankLost,
    SpecsplitError,
    TargetFailed,
    Unauthenticated,
    Unavailable,
    Unread,
    Unsupported,
    shortened,
)
from specsplit.rpc.hints import advised

CODES: Mapping[type[SpecsplitError], grpc.StatusCode] = MappingProxyType(
    {
        InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
        ContextExceeded: grpc.StatusCode.INVALID_ARGUMENT,
        Unsupported: grpc.StatusCode.UNIMPLEMENTED,
        Incompatible: grpc.StatusCode.FAILED_PRECONDITION,
        IllegalEvent: grpc.StatusCode.ABORTED,
        Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Unread: grpc.StatusCode.RESOURCE_EXHAUSTED,
        NotFound: grpc.StatusCode.NOT_FOUND,
        Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
        PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
        Unavailable: grpc.StatusCode.UNAVAILABLE,
        TargetFailed: grpc.StatusCode.UNAVAILABLE,
        DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
        Cancelled: grpc.StatusCode.CANCELLED,
        LoadError: grpc.StatusCode.FAILED_PRECONDITION,
        RankLost: grpc.StatusCode.UNAVAILABLE,
        SpecsplitError: grpc.StatusCode.INTERNAL,
    }
)
"""One row per error; a subclass that has none takes its nearest ancestor's."""

_MOST_BYTES = 1_000
"""The length of a sentence in UTF-8, at most."""
_MOST_FIELD_BYTES = 256
_DETAILS_KEY = "grpc-status-details-bin"
_CONTEXT = error_details_pb2.ErrorInfo(reason="CONTEXT_EXCEEDED", domain="specsplit")
_TARGET_FAILED = error_details_pb2.ErrorInfo(reason="TARGET_FAILED", domain="specsplit")
_BY_NUMBER: Mapping[int, grpc.StatusCode] = MappingProxyType({int(code.value[0]): code for code in grpc.StatusCode})
_WITHOUT_WAY_BACK = ContextExceeded, LoadError, RankLost, TargetFailed, Unread
"""Their statuses come back as others that have the same, unless details tell them apart."""
_ERRORS: Mapping[grpc.StatusCode, type[SpecsplitError]] = MappingProxyType(
    {code: error for error, code in CODES.items() if error not in _WITHOUT_WAY_BACK}
)
_ON_THE_WAY_S = 0.1
"""A call may take so much longer to arrive than the news of its end."""
_ROUNDED_UP = 0.01
"""gRPC sends three digits of a timeout at most."""
_TRANSPORT_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_BROKEN_OFF = frozenset(
    {(grpc.StatusCode.INTERNAL, "Internal error from Core"), (grpc.StatusCode.CANCELLED, "CANCELLED")}
)
"""What gRPC itself says of a call that the other side ended, or whose connection broke, while it was being written to; and of one that
reaches a server as it stops. A call that was cancelled on this side has another sentence.
"""
_ILLEGAL = re.compile(r"session (\d+): (.+?) in state (\w+): (.*)", re.DOTALL)


class _Failure(Protocol):
    """The fields that a failed call has, sync or async."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def code_of(error: SpecsplitError) -> grpc.StatusCode:
    """Look up the status code of an error."""
    return next(CODES[ancestor] for ancestor in type(error).__mro__ if ancestor in CODES)


def code_of_departure(left_s: float | None, allowed_s: float | None) -> grpc.StatusCode:
    """The status of a call that its caller ended with `left_s` of the `allowed_s` seconds that it gave still to come; None: no deadline.

    DEADLINE_EXCEEDED if hardly any time was left, else CANCELLED. A caller's own deadline ends a call a little before the one that the
    server knows of: it is sent rounded up, by at most 1 %, and the server counts from when the call arrived.
    """
    if left_s is None or allowed_s is None:
        return grpc.StatusCode.CANCELLED
    late = left_s <= _ON_THE_WAY_S + _ROUNDED_UP * allowed_s
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED


def number_of(error: SpecsplitError) -> int:
    """The status code of `error` as the number that RefuseEvent.code carries."""
    return int(code_of(error).value[0])


def to_status(error: SpecsplitError) -> grpc.Status:
    """The status that ends a call with `error`; its sentence is the error's own, or the beginning of a very long one."""
    return rpc_status.to_status(_status_of(error))  # pyright: ignore[reportUnknownMemberType]


def to_status_bytes(error: SpecsplitError) -> bytes:
    """The status of `error` as a message, for a session that has no call of its own."""
    return _status_of(error).SerializeToString()


def from_status_bytes(data: bytes) -> SpecsplitError:
    """The error that a status, as a message, stands for. Raises InvalidRequest for what is no status, or one of no failure."""
    try:
        status = status_pb2.Status.FromString(data)
    except message.DecodeError:
        raise InvalidRequest("failed.status", "is not a google.rpc.Status") from None
    if status.code == 0:
        raise InvalidRequest("failed.status", "has code 0 (OK), expected an error code")
    result = to_error(status.code, shortened(status.message, _MOST_BYTES))
    for detail in status.details:
        result = _enriched(result, detail)
    return result


def _status_of(error: SpecsplitError) -> status_pb2.Status:
    return status_pb2.Status(code=number_of(error), message=sentence_of(error), details=_details_of(error))


def sentence_of(error: SpecsplitError) -> str:
    """Make the sentence that a status, or a RefuseEvent, has for an error."""
    return shortened(str(error), _MOST_BYTES)


def to_error(code: grpc.StatusCode | int, sentence: str) -> SpecsplitError:
    """The error that a status code (or its number) and a sentence stand for."""
    status_code = code if isinstance(code, grpc.StatusCode) else _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN)
    kind = _ERRORS.get(status_code, SpecsplitError)
    if kind is InvalidRequest:
        return InvalidRequest(*_field_and_rest(sentence))
    if kind is Unsupported:
        return Unsupported(*_field_and_rest(sentence))
    if kind is IllegalEvent:
        return _illegal_event(sentence)
    return kind(sentence)


def from_rpc_error(error: grpc.RpcError, peer: str = "") -> SpecsplitError:
    """The error that a failed call stands for.

    `peer` (for instance "verifier 127.0.0.1:50051") is put before a sentence that the transport wrote, since that names nobody.
    """
    failure = cast("_Failure", error)
    status = _sent_status(failure)
    if status is None and (failure.code(), failure.details()) in _BROKEN_OFF:
        return Unavailable(f"{peer or 'the other side'}: it ended the call, or the connection broke")
    sentence = shortened(failure.details() or failure.code().name, _MOST_BYTES)
    if status is None:
        sentence = advised(sentence)
        if peer and failure.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported(peer, sentence)
        if peer and failure.code() in _TRANSPORT_CODES:
            sentence = f"{peer}: {sentence}"
    result = to_error(failure.code(), sentence)
    for detail in status.details if status else ():
        result = _enriched(result, detail)
    return result


def is_from_peer(error: grpc.RpcError) -> bool:
    """True if the peer itself ended the call, with a status of this catalogue; False if the transport did, or somebody else's server."""
    return _sent_status(cast("_Failure", error)) is not None


def is_task_cancelled() -> bool:
    """True if the running task was cancelled, not just the call it waits for: grpc.aio raises CancelledError for both."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _field_and_rest(sentence: str) -> tuple[str, str]:
    field, colon, rest = sentence.partition(": ")
    return (field, rest) if colon and " " not in field else ("request", sentence)


def _illegal_event(sentence: str) -> SpecsplitError:
    parts = _ILLEGAL.fullmatch(sentence)
    if parts is None:
        return SpecsplitError(sentence)
    return IllegalEvent(int(parts[1]), parts[3], parts[2], parts[4])


def _details_of(error: SpecsplitError) -> list[any_pb2.Any]:
    if isinstance(error, InvalidRequest):
        field, problem = shortened(error.field, _MOST_FIELD_BYTES), shortened(error.problem, _MOST_BYTES)
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=problem)
        bad = _packed(error_details_pb2.BadRequest(field_violations=[violation]))
        return [bad, _packed(_CONTEXT)] if isinstance(error, ContextExceeded) else [bad]
    if isinstance(error, Exhausted) and error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        return [_packed(error_details_pb2.RetryInfo(retry_delay=delay))]
    return [_packed(_TARGET_FAILED)] if isinstance(error, TargetFailed) else []


def _packed(detail: message.Message) -> any_pb2.Any:
    wrapped = any_pb2.Any()
    wrapped.Pack(detail)
    return wrapped


def _sent_status(failure: _Failure) -> status_pb2.Status | None:
    """What the peer's own catalogue sent; None if the transport ended the call, or what was sent is the status of no such end."""
    for key, value in failure.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                status = status_pb2.Status.FromString(value)
            except message.DecodeError:
                return None
            return status if status.code == int(failure.code().value[0]) else None
    return None


def _enriched(error: SpecsplitError, detail: any_pb2.Any) -> SpecsplitError:
    retry, bad, info = error_details_pb2.RetryInfo(), error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    if isinstance(error, Exhausted) and detail.Unpack(retry):
        return Exhausted(str(error), retry.retry_delay.ToNanoseconds() / 1e9)
    if isinstance(error, InvalidRequest) and detail.Unpack(bad) and bad.field_violations:
        return InvalidRequest(bad.field_violations[0].field, bad.field_violations[0].description)
    if isinstance(error, InvalidRequest) and detail.Unpack(info) and info.reason == _CONTEXT.reason:
        return ContextExceeded(error.field, error.problem)
    if isinstance(error, Unavailable) and detail.Unpack(info) and info.reason == _TARGET_FAILED.reason:
        return TargetFailed(str(error))
    return error
