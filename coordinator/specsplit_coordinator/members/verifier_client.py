"""The coordinator's gRPC client of the verifiers: it makes calls, and turns how they end into errors of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from functools import partial
from typing import Protocol

import grpc

from specsplit.engine import Operation, Outcome, Updated, UpdateWeights
from specsplit.errors import DeadlineExceeded, Incompatible, InvalidRequest, SpecsplitError, Unavailable, quoted
from specsplit.generation.gathering import Gathering
from specsplit.generation.inbox import Inbox
from specsplit.observe import Tracing
from specsplit.rpc import CODES, from_rpc_error, is_from_peer, is_task_cancelled
from specsplit.sessions import Begin, DecodeEvent, Finished
from specsplit.settings import TransportSettings
from specsplit.v1 import drafter_pb2_grpc
from specsplit.values import PromptLogprobs
from specsplit.vllm_engine.client import OperationCall
from specsplit.wire.verifier import decode_events, decode_to_wire
from specsplit.wire.watching import Watched, watch_event, watch_to_wire
from specsplit.wire.weights import (
    drafter_update_to_wire,
    drafter_updated_from_wire,
    verifier_update_to_wire,
    verifier_updated_from_wire,
)
from specsplit_coordinator.members.channel_pool import ChannelPool, PooledChannel
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.session_stream import SessionStream, TooLong, Unknown
from specsplit_coordinator.members.verifier_session import VerifierSession

_OF_A_VERIFIER = frozenset(CODES.values()) - {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
}
"""Statuses that a verifier itself ends a Decode call with. A call that ends with another one, and not by a status of the catalogue, has
reached somebody else's server, for instance because the verifier advertises a wrong address."""
_REFUSED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
"""Statuses with which a verifier refuses this coordinator. The program whose request it is could do nothing about that."""


class VerifierClient:
    """Decodes and watches sessions on verifiers, and passes on what operators ask of all of them."""

    def __init__(self, settings: TransportSettings, tracing: Tracing, gathering: Gathering) -> None:
        """`gathering`: says when what has come for sessions is told."""
        self._tracing = tracing
        self._gathering = gathering
        self._settings = settings
        self._channels = ChannelPool(settings, tracing)

    async def decode(self, verifier: MemberState, session: VerifierSession) -> None:
        """Decode a session until it has ended or is left.

        Raises Unavailable if the verifier is lost meanwhile, what `session.take` raises, otherwise the error that the verifier ends the
        call with.
        """
        _require_alive(verifier)
        with self._channels.to(verifier) as pooled:
            waits = session.request.prompt_logprobs is not None  # what is told of a prompt, until there is room for it
            if pooled.streams and not waits:
                try:
                    with self._joined(verifier, pooled, session) as inbox:
                        await inbox.over()
                    return
                except Unknown:
                    pooled.streams = False
                except TooLong:
                    pass
            async with aclosing(self._alone(verifier, pooled, session)) as sets:
                async for events in sets:
                    if session.take(events):
                        return
                    if isinstance(events[-1], PromptLogprobs):
                        await session.room()

    def _joined(
        self, verifier: MemberState, pooled: PooledChannel, session: VerifierSession
    ) -> AbstractContextManager[Inbox[DecodeEvent]]:
        """Begin a session on the stream to the verifier. Raises TooLong, and DeadlineExceeded if there is no time."""
        overdue, timeout_s = DeadlineExceeded(f"verifier {verifier.member_id}: Deadline Exceeded"), session.timeout_s
        if timeout_s is not None and timeout_s <= 0:
            raise overdue
        stream = pooled.stream
        if stream is None or stream.over:
            call, most = pooled.stub.DecodeSessions(), self._settings.max_message_bytes
            stream = SessionStream(call, partial(_ended, verifier), most, self._gathering)
            pooled.stream = stream
        begin = Begin(session.request, timeout_s, "" if session.trace is None else session.trace.traceparent)
        return stream.session(begin, session.take, overdue)

    async def _alone(
        self, verifier: MemberState, pooled: PooledChannel, session: VerifierSession
    ) -> AsyncGenerator[Sequence[DecodeEvent], None]:
        """Decode a session in a call of its own."""
        with self._tracing.within(session.trace):
            call = pooled.stub.Decode(decode_to_wire(session.request), timeout=session.timeout_s)
        last: Sequence[DecodeEvent] = ()
        with _tied_to(verifier, call), _answered_by_verifier(verifier):
            async for message in call:
                events = decode_events(message)
                if isinstance(events[-1], Finished):
                    # Yielded once the call is over: a caller that stops at this event would otherwise cancel the call.
                    last = events
                else:
                    yield events
            if last:
                yield last

    async def watch(self, verifier: MemberState, request_id: str) -> AsyncGenerator[tuple[Watched, int], None]:
        """Yield what happens to the speculation of a session on a verifier, each event with the number of events left out before it.

        It ends with the session. Raises NotFound if the verifier has no such session, Unsupported if it does not know this call,
        otherwise as `decode` does.
        """
        _require_alive(verifier)
        with self._channels.to(verifier) as pooled:
            call = pooled.stub.Watch(watch_to_wire(request_id))
            with _tied_to(verifier, call):
                async for message in call:
                    yield watch_event(message)

    async def operate(self, verifier: MemberState, operation: Operation, timeout_s: float) -> Outcome:
        """Have the engine of a verifier do what an operator asks for.

        Raises Unsupported if it does not know the call, DeadlineExceeded if it takes longer, otherwise as `decode` does, Unavailable
        included if no verifier answers at its address.
        """
        _require_alive(verifier)
        with self._channels.to(verifier) as pooled:
            call = OperationCall(pooled.channel, operation, timeout_s)
            with _tied_to(verifier, call), _answered_by_verifier(verifier, may_not_know=True):
                return await call.outcome()

    async def update_weights(self, verifier: MemberState, wanted: UpdateWeights, timeout_s: float) -> Updated:
        """Have a verifier go on with other weights. Raises as `operate` does."""
        _require_alive(verifier)
        with self._channels.to(verifier) as pooled:
            call = pooled.stub.UpdateWeights(verifier_update_to_wire(wanted), timeout=timeout_s)
            with _tied_to(verifier, call), _answered_by_verifier(verifier, may_not_know=True):
                return verifier_updated_from_wire(await call)

    async def update_drafter(self, drafter: MemberState, wanted: UpdateWeights, timeout_s: float) -> Updated:
        """Have a drafter go on with other weights. Raises as `operate` does."""
        _require_alive(drafter)
        with self._channels.to(drafter) as pooled:
            stub = drafter_pb2_grpc.DrafterServiceStub(pooled.channel)
            call = stub.UpdateWeights(drafter_update_to_wire(wanted), timeout=timeout_s)
            with _tied_to(drafter, call), _answered_by_verifier(drafter, may_not_know=True):
                return drafter_updated_from_wire(await call)

    async def close(self) -> None:
        """Close every channel."""
        await self._channels.close()


class _Call(Protocol):
    def cancel(self) -> bool: ...


@contextmanager
def _tied_to(verifier: MemberState, call: _Call) -> Generator[None]:
    """Cancel the call when the block is left, or when the verifier is lost without having drained.

    Raises for a failed call what `VerifierClient.decode` says.
    """

    def cancel() -> None:
        if not verifier.leaving:
            call.cancel()

    verifier.on_lost.append(cancel)
    try:
        with _translated(verifier):
            yield
    finally:
        verifier.on_lost.remove(cancel)
        call.cancel()


@contextmanager
def _translated(verifier: MemberState) -> Generator[None]:
    """Raise for a failed call what `VerifierClient.decode` says."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        _require_alive(verifier)
        if error.code() in _REFUSED:
            raise Unavailable(f"{_name(verifier)} refuses this coordinator: {error.details()}") from error
        if error.code() is grpc.StatusCode.CANCELLED:  # by the verifier: its time to drain is over, as a rule
            raise Unavailable(f"{_name(verifier)} broke the session off") from error
        raise from_rpc_error(error, f"{_name(verifier)}") from error
    except asyncio.CancelledError:
        if not is_task_cancelled():
            _require_alive(verifier)
        raise


def _ended(verifier: MemberState, error: Exception) -> Exception:
    """The error of a session whose stream ended with `error`, or that was sent what stands for it."""
    try:
        with _translated(verifier), _answered_by_verifier(verifier):
            raise error
    except SpecsplitError as ours:
        return ours


@contextmanager
def _answered_by_verifier(verifier: MemberState, *, may_not_know: bool = False) -> Generator[None]:
    """Raise Unavailable if a call was answered by a server that is no verifier, or with messages that cannot be read.

    `may_not_know`: a verifier of an older build may not have the call, and what it says of that is passed on.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        unknown = may_not_know and error.code() is grpc.StatusCode.UNIMPLEMENTED
        if error.code() not in _OF_A_VERIFIER and not unknown and not is_from_peer(error):
            raise _no_verifier(verifier, f"{error.code().name}: {quoted(error.details() or '')}") from error
        raise
    except (InvalidRequest, Incompatible) as error:
        raise _no_verifier(verifier, str(error)) from error


def _no_verifier(verifier: MemberState, why: str) -> Unavailable:
    role = _role(verifier)
    return Unavailable(f"{role} {verifier.member_id} at {verifier.who.address} does not answer as a {role} does: {why}")


def _require_alive(verifier: MemberState) -> None:
    if verifier.lost_because is not None:
        raise lost(verifier)


def lost(verifier: MemberState) -> SpecsplitError:
    """Make the error with which the sessions of a lost verifier end."""
    return Unavailable(f"{_name(verifier)} was lost: {verifier.lost_because}; send the request again")


def _name(member: MemberState) -> str:
    return f"{_role(member)} {member.member_id}"


def _role(member: MemberState) -> str:
    return "verifier" if member.is_verifier else "drafter"
