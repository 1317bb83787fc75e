"""The calls to verifiers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Protocol

import grpc

from specsplit.errors import Incompatible, InvalidRequest, SpecsplitError, Unavailable, quoted
from specsplit.observe import TraceContext, Tracing
from specsplit.rpc import CODES, from_rpc_error, is_from_peer, is_task_cancelled
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished
from specsplit.settings import TransportSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit.wire.verifier import decode_event, decode_to_wire
from specsplit.wire.watching import Watched, watch_event, watch_to_wire
from specsplit_coordinator.members.lines import Lines
from specsplit_coordinator.members.member_state import MemberState

_OF_A_VERIFIER = frozenset(CODES.values()) - {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
}
"""How a call may end without a status of the catalogue. Else it has reached somebody else's server, for instance because a verifier
advertises a wrong address."""
_REFUSED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
"""How a call ends that a verifier does not take from this coordinator, which is nothing that the caller could mend."""


class Dialler:
    """Decodes sessions on verifiers."""

    def __init__(self, settings: TransportSettings, tracing: Tracing) -> None:
        self._tracing = tracing
        self._lines = Lines(settings, tracing)

    async def decode(
        self,
        verifier: MemberState,
        request: DecodeRequest,
        timeout_s: float | None = None,
        trace: TraceContext | None = None,
    ) -> AsyncGenerator[DecodeEvent, None]:
        """The events of one session, which belongs below `trace`; leaving the loop, by whatever way, ends the session on the verifier.

        Raises Unavailable if the verifier is lost meanwhile, else what the verifier says.
        """
        _require_alive(verifier)
        with self._lines.to(verifier) as channel:
            with self._tracing.within(trace):
                call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(decode_to_wire(request), timeout=timeout_s)
            finished: Finished | None = None
            with _bound(verifier, call), _as_a_verifier(verifier):
                async for message in call:
                    event = decode_event(message)
                    if isinstance(event, Finished):
                        # Held until the call is over too: a call that is left at its end counts as cancelled.
                        finished = event
                    else:
                        yield event
                if finished is not None:
                    yield finished

    async def watch(self, verifier: MemberState, request_id: str) -> AsyncGenerator[tuple[Watched, int], None]:
        """What happens to the speculation of a session on a verifier until the session ends, and how many events were left out before each.

        Raises NotFound if there is no such session there, Unsupported if the verifier does not know this call, else as `decode`.
        """
        _require_alive(verifier)
        with self._lines.to(verifier) as channel:
            call = verifier_pb2_grpc.VerifierServiceStub(channel).Watch(watch_to_wire(request_id))
            with _bound(verifier, call):
                async for message in call:
                    yield watch_event(message)

    async def close(self) -> None:
        """Close every channel."""
        await self._lines.close()


class _Call(Protocol):
    def cancel(self) -> bool: ...


@contextmanager
def _bound(verifier: MemberState, call: _Call) -> Generator[None]:
    """The call ends with the block, and with the verifier, unless that has drained; what it fails with is told as `Dialler.decode` says."""

    def cut() -> None:
        if not verifier.leaving:
            call.cancel()

    verifier.on_lost.append(cut)
    try:
        yield
    except grpc.aio.AioRpcError as error:
        _require_alive(verifier)
        if error.code() in _REFUSED:
            raise Unavailable(f"verifier {verifier.member_id} refuses this coordinator: {error.details()}") from error
        if (
            error.code() is grpc.StatusCode.CANCELLED
        ):  # it was not this side: the verifier's time to drain is over, as a rule
            raise Unavailable(f"verifier {verifier.member_id} broke the session off") from error
        raise from_rpc_error(error, f"verifier {verifier.member_id}") from error
    except asyncio.CancelledError:
        if not is_task_cancelled():
            _require_alive(verifier)
        raise
    finally:
        verifier.on_lost.remove(cut)
        call.cancel()


@contextmanager
def _as_a_verifier(verifier: MemberState) -> Generator[None]:
    """Raise Unavailable if what answers a Decode is somebody else's server, or answers what cannot be read."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() not in _OF_A_VERIFIER and not is_from_peer(error):
            raise _no_verifier(verifier, f"{error.code().name}: {quoted(error.details() or '')}") from error
        raise
    except (InvalidRequest, Incompatible) as error:
        raise _no_verifier(verifier, str(error)) from error


def _no_verifier(verifier: MemberState, why: str) -> Unavailable:
    return Unavailable(
        f"verifier {verifier.member_id} at {verifier.who.address} does not answer as a verifier does: {why}"
    )


def _require_alive(verifier: MemberState) -> None:
    if verifier.lost_because is not None:
        raise lost(verifier)


def lost(verifier: MemberState) -> SpecsplitError:
    """Make the error with which the sessions of a lost verifier end."""
    return Unavailable(f"verifier {verifier.member_id} was lost: {verifier.lost_because}; send the request again")
