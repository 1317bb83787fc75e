"""Channels to the verifiers, one each, kept while the verifier is in the cluster.

An open channel shows the certificate that there was when it was made, whenever it connects. So the first call after a change is made on a
new one, and the one before is closed when the last call on it is over.
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
from specsplit_coordinator.members.member_state import MemberState

LAST_WORDS_S = 5.0
"""How long the calls to a verifier that drained may go on once it has left: the end of a session and that of its membership come over
different connections, and a busy coordinator may read them in either order."""


@dataclass(eq=False)
class _Line:
    """One channel to a verifier."""

    channel: grpc.aio.Channel
    shows: Pems | None
    calls: int = 0
    """Calls that are on the channel now."""


@dataclass(eq=False)
class _Lines:
    """The channels to one verifier."""

    current: _Line
    older: list[_Line] = field(default_factory=list[_Line])
    """Channels that show an older certificate, and still have calls on them."""

    def unused(self) -> list[_Line]:
        """Take out the older ones on which no call is left."""
        unused = [line for line in self.older if not line.calls]
        self.older = [line for line in self.older if line.calls]
        return unused


class Lines:
    """The channels of one coordinator."""

    def __init__(self, settings: TransportSettings, tracing: Tracing) -> None:
        self._settings = settings
        self._tracing = tracing
        self._lines: dict[MemberState, _Lines] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    @contextmanager
    def to(self, verifier: MemberState) -> Generator[grpc.aio.Channel]:
        """A channel to a verifier that is not lost, for a call that is over when the block is left."""
        line = self._line(verifier)
        line.calls += 1
        try:
            yield line.channel
        finally:
            line.calls -= 1
            self._close_unused(verifier)

    async def close(self) -> None:
        """Close every channel."""
        self._over.set()
        for verifier in [*self._lines]:
            self._forget(verifier)
        await asyncio.gather(*self._closing)

    def _line(self, verifier: MemberState) -> _Line:
        shows, lines = shown_to_servers(self._settings), self._lines.get(verifier)
        if lines is not None and lines.current.shows == shows:
            return lines.current
        made = _Line(dial(verifier.who.address, self._settings, self._tracing), shows)
        if lines is None:
            self._lines[verifier] = _Lines(made)
            verifier.on_lost.append(lambda: self._forget(verifier))
        else:
            lines.older.append(lines.current)
            lines.current = made
            self._close_unused(verifier)
        return made

    def _close_unused(self, verifier: MemberState) -> None:
        if verifier in self._lines:
            for line in self._lines[verifier].unused():
                self._close(line, 0.0)

    def _forget(self, verifier: MemberState) -> None:
        lines = self._lines.pop(verifier, None)
        if lines is not None:
            for line in (lines.current, *lines.older):
                self._close(line, LAST_WORDS_S if verifier.leaving else 0.0)

    def _close(self, line: _Line, after_s: float) -> None:
        task = asyncio.get_running_loop().create_task(self._closed(line.channel, after_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, channel: grpc.aio.Channel, after_s: float) -> None:
        """Close a channel, and with it the calls on it, after so many seconds, or when the coordinator ends."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), after_s)
        await channel.close()
