"""The messages of an answer that the caller has not read yet.

The events of a request are taken as they come, whether the caller reads or not. So its place on the verifier is free as soon as the
verifier is done, and a caller that stops reading holds nothing but its own unread bytes. Two things are bounded: the number of these
bytes, and the time for which one message may wait to be read. While more than half of that is unread no more of a prompt is asked for.

What comes while a message is on its way leaves with the next one, since a message costs much more than the tokens in it. That delays
nothing: it could not be sent before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from specsplit.errors import SpecsplitError
from specsplit.generation.burst import GATHERED
from specsplit.generation.listener import Listener
from specsplit.generation.unread import UnreadMessages
from specsplit.requests import Delta, Done, GenerateEvent
from specsplit.stream_interval import Held

Answered = TypeVar("Answered", bound=Message)
Write = Callable[[GenerateEvent, Sequence[Delta]], Iterable[Answered]]
"""Makes messages of an event and of the deltas before it that were held back; none if there is nothing to tell yet."""


class ResponseBuffer(Generic[Answered]):
    """The buffer of one call, and its listener. It lives on one event loop; `close` has to be called when the call is over."""

    def __init__(
        self,
        generate: Callable[[Listener], Coroutine[Any, Any, None]],
        held: Sequence[Held[Delta]],
        write: Write[Answered],
        max_bytes: int,
        patience_s: float,
        on_stalled: Callable[[], object],
    ) -> None:
        """`generate`: has the answer generated, and heard here. `held`: what holds output back, by choice.

        `on_stalled` is called if a message has waited for `patience_s` and the caller has not taken it."""
        self._held = held
        self._write = write
        self._unread = UnreadMessages[Answered](max_bytes)
        self._wanted: asyncio.Future[None] | None = None
        """What the reader waits for."""
        self._taken = asyncio.Event()
        """Set when a message is read."""
        self._stall = _Stall(patience_s, on_stalled)
        self._aborted: SpecsplitError | None = None
        self._generating = asyncio.create_task(self._generate(generate))
        self._generating.add_done_callback(self._generated)

    async def read(self) -> AsyncGenerator[Answered, None]:
        """Yield the messages in order, then raise what ended them.

        That is Unread if more than `max_bytes` were left unread, and what `abort` was given.
        """
        while True:
            while self._unread or self._put_due():
                message = self._unread.take()
                self._taken.set()
                self._stall.begin()
                yield message
                self._stall.end()
            if self._generating.done():
                break
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        if self._aborted is not None:
            raise self._aborted
        self._generating.result()

    def abort(self, error: SpecsplitError) -> None:
        """Stop generating, unless that is done; who reads gets `error` behind what has come."""
        if not self._generating.done():
            self._aborted = error
            self._generating.cancel()

    def close(self) -> None:
        """Stop generating; the call is over, however it ended."""
        self._stall.close()
        self._generating.cancel()

    def hear(self, deltas: Sequence[Delta]) -> None:
        """Add deltas of one choice that came at once. Raises Unread, as `Listener.hear` says."""
        if deltas[-1].prompt is not None:  # nothing is held before the first tokens
            self._put(deltas[-1], (), prompt=True)
            return
        held = self._held[deltas[-1].index]
        if not (held.holds(deltas, sum([len(each.tokens) for each in deltas])) or self._gathers(deltas, held)):
            self._put(deltas[-1], [*held.release(), *deltas[:-1]])
            self._unread.check()

    def end(self, done: Done) -> None:
        """Add the end of a choice."""
        self._put(done, self._held[done.index].release())

    async def room(self) -> None:
        """Return when no more than half as many bytes are unread as may be."""
        while not self._unread.roomy:
            self._taken.clear()
            await self._taken.wait()

    async def _generate(self, generate: Callable[[Listener], Coroutine[Any, Any, None]]) -> None:
        try:
            await generate(self)
        except SpecsplitError:
            for held in self._held:
                if earlier := held.release():
                    self._put(earlier.pop(), earlier)
            raise

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

    def _put(self, event: GenerateEvent, earlier: Sequence[Delta], *, prompt: bool = False) -> None:
        """Add the messages of an event, and have them read."""
        self._unread.add(self._write(event, earlier), prompt=prompt)
        self._wake()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def _generated(self, generating: asyncio.Task[None]) -> None:
        self._wake()
        if not generating.cancelled():
            generating.exception()  # retrieved, so that asyncio does not log it if the caller is gone and `read` raises it to nobody


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
