"""The gRPC channels to the verifiers: one per verifier, open for as long as the verifier is in the cluster.

An open channel goes on showing the certificate that it was made with, also when it reconnects. So the first call after a change of the
certificate opens a new channel, and the old one is closed when the last call on it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import grpc

from specsplit.observe import Tracing
from specsplit.rpc import Pems, dial, shown_to_servers
from specsplit.settings import TransportSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.session_stream import SessionStream

DRAINED_GRACE_S = 5.0
"""How long calls to a verifier that has drained and left may go on. The end of a session and the end of the Join stream come over
different connections, and a busy coordinator may read them in either order."""


@dataclass(eq=False)
class PooledChannel:
    """One channel to a verifier, and its calls: to make these anew takes longer than to begin one."""

    channel: grpc.aio.Channel
    stub: verifier_pb2_grpc.VerifierServiceAsyncStub
    certificates: Pems | None
    """What it was dialled with; None: in the clear."""
    calls: int = 0
    """Calls that are open on the channel now, and sessions on its stream."""
    stream: SessionStream | None = None
    """The call that carries many sessions; None: no session was begun on one yet."""
    streams: bool = True
    """False: the verifier does not know that call."""


@dataclass(eq=False)
class _VerifierChannels:
    """The channels to one verifier."""

    current: PooledChannel
    older: list[PooledChannel] = field(default_factory=list[PooledChannel])
    """Channels that show an older certificate and still have open calls."""

    def unused(self) -> list[PooledChannel]:
        """Remove and return the older channels that have no open call."""
        unused = [pooled for pooled in self.older if not pooled.calls]
        self.older = [pooled for pooled in self.older if pooled.calls]
        return unused


class ChannelPool:
    """The channels of one coordinator to its verifiers."""

    def __init__(self, settings: TransportSettings, tracing: Tracing) -> None:
        self._settings = settings
        self._tracing = tracing
        self._channels: dict[MemberState, _VerifierChannels] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._pool_closed = asyncio.Event()

    @contextmanager
    def to(self, verifier: MemberState) -> Generator[PooledChannel]:
        """Lend a channel to a verifier, which must not be lost, for one call; the call must be over when the block is left."""
        pooled = self._current(verifier)
        pooled.calls += 1
        try:
            yield pooled
        finally:
            pooled.calls -= 1
            self._close_unused(verifier)

    async def close(self) -> None:
        """Close every channel."""
        self._pool_closed.set()
        for verifier in [*self._channels]:
            self._forget(verifier)
        await asyncio.gather(*self._closing)

    def _current(self, verifier: MemberState) -> PooledChannel:
        certificates, channels = shown_to_servers(self._settings), self._channels.get(verifier)
        if channels is not None and channels.current.certificates == certificates:
            return channels.current
        channel = dial(verifier.who.address, self._settings, self._tracing)
        new = PooledChannel(channel, verifier_pb2_grpc.VerifierServiceStub(channel), certificates)
        if channels is None:
            self._channels[verifier] = _VerifierChannels(new)
            verifier.on_lost.append(lambda: self._forget(verifier))
        else:
            channels.older.append(channels.current)
            channels.current = new
            self._close_unused(verifier)
        return new

    def _close_unused(self, verifier: MemberState) -> None:
        if verifier in self._channels:
            for pooled in self._channels[verifier].unused():
                self._close(pooled, 0.0)

    def _forget(self, verifier: MemberState) -> None:
        channels = self._channels.pop(verifier, None)
        if channels is not None:
            for pooled in (channels.current, *channels.older):
                self._close(pooled, DRAINED_GRACE_S if verifier.leaving else 0.0)

    def _close(self, pooled: PooledChannel, after_s: float) -> None:
        task = asyncio.get_running_loop().create_task(self._closed(pooled, after_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, pooled: PooledChannel, after_s: float) -> None:
        """Close a channel, and the calls on it, after `after_s` seconds, or sooner if the pool is closed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._pool_closed.wait(), after_s)
        if pooled.stream is not None:
            pooled.stream.cancel()
            await pooled.stream.task
        await pooled.channel.close()
