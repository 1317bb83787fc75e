"""The messages of an answer that the caller has not read yet.

The events of a request are taken as they come, whether the caller reads or not. So its place on the verifier is free as soon as the
verifier is done, and a caller that stops reading holds nothing but its own unread bytes. Two things are bounded: the number of these
bytes, and the time for which one message may wait to be read. While half as many are unread nothing more is taken of a prompt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from google.protobuf.message import Message

from specsplit.errors import Exhausted, SpecsplitError
from specsplit.requests import Delta, GenerateEvent
from specsplit.stream_interval import Held

Answered = TypeVar("Answered", bound=Message)
Write = Callable[[GenerateEvent, Sequence[Delta]], Iterable[Answered]]
"""Makes messages of an event and of the deltas before it that were held back; none if there is nothing to tell yet."""


class ResponseBuffer(Generic[Answered]):
    """The buffer of one call. It lives on one event loop; `close` has to be called when the call is over."""

    def __init__(
        self,
        events: AsyncGenerator[GenerateEvent, None],
        held: Sequence[Held[Delta]],
        write: Write[Answered],
        max_bytes: int,
        patience_s: float,
        on_stalled: Callable[[], object],
    ) -> None:
        """`held`: what holds output back, by choice.

        `on_stalled` is called if a message has waited for `patience_s` and the caller has not taken it."""
        self._events = events
        self._held = held
        self._write = write
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._on_stalled = on_stalled
        self._unread: deque[Answered] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        """Set when messages come or are read."""
        self._timer: asyncio.TimerHandle | None = None
        self._aborted: SpecsplitError | None = None
        self._pump = asyncio.create_task(self._fill())
        self._pump.add_done_callback(self._filled)

    async def read(self) -> AsyncGenerator[Answered, None]:
        """Yield the messages in order, then raise what ended them.

        That is Exhausted if more than `max_bytes` were left unread, and what `abort` was given.
        """
        while True:
            while self._unread:
                message = self._unread.popleft()
                self._bytes -= message.ByteSize()
                self._changed.set()
                self._start_timer()
                yield message
                self._stop_timer()
            if self._pump.done():
                break
            self._changed.clear()
            await self._changed.wait()
        if self._aborted is not None:
            raise self._aborted
        self._pump.result()

    def abort(self, error: SpecsplitError) -> None:
        """Stop taking events, unless all have come; who reads gets `error` behind what has come."""
        if not self._pump.done():
            self._aborted = error
            self._pump.cancel()

    def close(self) -> None:
        """Stop taking events; the call is over, however it ended."""
        self._stop_timer()
        self._pump.cancel()

    async def _fill(self) -> None:
        try:
            async with aclosing(self._events):
                async for event in self._events:
                    if isinstance(event, Delta) and event.prompt is not None:
                        self._put(event, ())  # nothing is held before the first tokens
                        await self._read_down()
                        continue
                    held = self._held[event.index]
                    if isinstance(event, Delta) and held.holds(event, len(event.tokens)):
                        continue
                    size = self._put(event, held.release())
                    if isinstance(event, Delta):  # the end of a choice adds nothing to come
                        await self._weigh(size)
        except SpecsplitError:
            for held in self._held:
                if earlier := held.release():
                    self._put(earlier.pop(), earlier)
            raise

    def _put(self, event: GenerateEvent, earlier: Sequence[Delta]) -> int:
        """Add the messages of an event -> their bytes."""
        before = self._bytes
        for message in self._write(event, earlier):
            self._bytes += message.ByteSize()
            self._unread.append(message)
        self._changed.set()
        return self._bytes - before

    async def _weigh(self, size: int) -> None:
        """Give the answer up if its caller has left too much unread. What is so large at once, as the prompt may be, is no fault of his."""
        if size > self._max_bytes:
            await self._read_down()
        elif self._bytes > self._max_bytes:
            await self._events.athrow(self._too_much())

    async def _read_down(self) -> None:
        """Wait until there is room for what comes behind: a prompt is told faster than some callers read."""
        while self._bytes > self._max_bytes // 2:
            self._changed.clear()
            await self._changed.wait()

    def _too_much(self) -> Exhausted:
        return Exhausted(
            f"the answer was given up with {self._bytes:,} bytes of it unread; at most {self._max_bytes:,} are kept for a caller, "
            "so read it as it comes, or ask for less"
        )

    def _filled(self, pump: asyncio.Task[None]) -> None:
        self._changed.set()
        if not pump.cancelled():
            pump.exception()  # retrieved, so that asyncio does not log it if the caller is gone and `read` raises it to nobody

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._on_stalled)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
