"""The messages of an answer that the caller has not read yet.

The events of a request are taken as they come, whether the caller reads or not. So its place on the verifier is free as soon as the
verifier is done, and a caller that stops reading holds nothing but its own unread bytes. Two things are bounded: the number of these
bytes, and the time for which one message may wait to be read. While half as many are unread nothing more is taken of a prompt.

What comes while a message is on its way leaves with the next one, since a message costs much more than the tokens in it. That delays
nothing: it could not be sent before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from google.protobuf.message import Message

from specsplit.errors import SpecsplitError, Unread
from specsplit.generation.burst import GATHERED
from specsplit.requests import Delta, GenerateEvent
from specsplit.stream_interval import Held

Answered = TypeVar("Answered", bound=Message)
Write = Callable[[GenerateEvent, Sequence[Delta]], Iterable[Answered]]
"""Makes messages of an event and of the deltas before it that were held back; none if there is nothing to tell yet."""


class ResponseBuffer(Generic[Answered]):
    """The buffer of one call. It lives on one event loop; `close` has to be called when the call is over."""

    def __init__(
        self,
        events: AsyncGenerator[Sequence[GenerateEvent], None],
        held: Sequence[Held[Delta]],
        write: Write[Answered],
        max_bytes: int,
        patience_s: float,
        on_stalled: Callable[[], object],
    ) -> None:
        """`events`: those together that are to leave as one message, all of one choice. `held`: what holds output back, by choice.

        `on_stalled` is called if a message has waited for `patience_s` and the caller has not taken it."""
        self._events = events
        self._held = held
        self._write = write
        self._max_bytes = max_bytes
        self._unread: deque[tuple[Answered, int]] = deque()
        """Messages, with their bytes."""
        self._bytes = 0
        self._changed = asyncio.Event()
        """Set when messages come or are read."""
        self._stall = _Stall(patience_s, on_stalled)
        self._aborted: SpecsplitError | None = None
        self._pump = asyncio.create_task(self._fill())
        self._pump.add_done_callback(self._filled)

    async def read(self) -> AsyncGenerator[Answered, None]:
        """Yield the messages in order, then raise what ended them.

        That is Unread if more than `max_bytes` were left unread, and what `abort` was given.
        """
        while True:
            while self._unread or self._put_due():
                message, size = self._unread.popleft()
                self._bytes -= size
                self._changed.set()
                self._stall.begin()
                yield message
                self._stall.end()
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
        self._stall.close()
        self._pump.cancel()

    async def _fill(self) -> None:
        try:
            async with aclosing(self._events):
                async for together in self._events:
                    last, deltas = together[-1], [each for each in together if isinstance(each, Delta)]
                    if not deltas:  # the end of a choice, which adds nothing to come
                        self._put(last, self._held[last.index].release())
                    elif deltas[-1].prompt is None:
                        await self._add(deltas)
                    else:
                        self._put(last, ())  # nothing is held before the first tokens
                        await self._read_down()
        except SpecsplitError:
            for held in self._held:
                if earlier := held.release():
                    self._put(earlier.pop(), earlier)
            raise

    async def _add(self, deltas: Sequence[Delta]) -> None:
        held = self._held[deltas[-1].index]
        if not (held.holds(deltas, sum(len(each.tokens) for each in deltas)) or self._gathers(deltas, held)):
            await self._weigh(self._put(deltas[-1], [*held.release(), *deltas[:-1]]))

    def _gathers(self, deltas: Sequence[Delta], held: Held[Delta]) -> bool:
        """Whether deltas wait for a message that is on its way; log-probabilities are large, and counted at once."""
        busy = self._stall.begun or bool(self._unread)
        return busy and not deltas[-1].logprobs and held.gathers(deltas, GATHERED)

    def _put_due(self) -> bool:
        """Make messages of what waited for one to go -> whether there was any."""
        for held in self._held:
            if held.due:
                *earlier, last = held.release()
                self._put(last, earlier)
        return bool(self._unread)

    def _put(self, event: GenerateEvent, earlier: Sequence[Delta]) -> int:
        """Add the messages of an event -> their bytes."""
        before = self._bytes
        for message in self._write(event, earlier):
            size = message.ByteSize()
            self._bytes += size
            self._unread.append((message, size))
        self._changed.set()
        return self._bytes - before

    async def _weigh(self, size: int) -> None:
        """Give the answer up if its caller has left too much unread. What is so large at once, as the prompt may be, is no fault of his."""
        if size > self._max_bytes:
            await self._read_down()
        elif self._bytes > self._max_bytes:
            await self._events.athrow(Unread(self._bytes, self._max_bytes))

    async def _read_down(self) -> None:
        """Wait until there is room for what comes behind: a prompt is told faster than some callers read."""
        while self._bytes > self._max_bytes // 2:
            self._changed.clear()
            await self._changed.wait()

    def _filled(self, pump: asyncio.Task[None]) -> None:
        self._changed.set()
        if not pump.cancelled():
            pump.exception()  # retrieved, so that asyncio does not log it if the caller is gone and `read` raises it to nobody


class _Stall:
    """Tells when a caller takes a message too long after it could. A timer that runs stays, so that no message costs one."""

    def __init__(self, patience_s: float, on_stalled: Callable[[], object]) -> None:
        self._patience_s = patience_s
        self._on_stalled = on_stalled
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.begun = False
        """A message is on its way."""

    def begin(self) -> None:
        """A message can be taken from now on."""
        self.begun, self._since = True, self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._patience_s, self._look)

    def end(self) -> None:
        """It has been taken."""
        self.begun = False

    def close(self) -> None:
        """Nothing is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        due = self._since + self._patience_s
        if self.begun and self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._look)
        elif self.begun:
            self._on_stalled()
