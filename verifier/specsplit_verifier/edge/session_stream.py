"""The sessions of one DecodeSessions call: what begins and ends them, and what they get, many at a time. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Final

from specsplit.errors import DeadlineExceeded, Exhausted, InvalidRequest, SpecsplitError
from specsplit.observe import TraceContext
from specsplit.rpc import to_status_bytes
from specsplit.sessions import Begin, Failed, Finished, Leave, Tokens
from specsplit.stream_interval import Held
from specsplit.wire.sessions import Answer, ToVerifier
from specsplit_verifier.edge.sessions import LiveSession, Sessions
from specsplit_verifier.records.events import Output

MAX_UNSENT: Final = 2**20
"""Events that a coordinator may leave unread before its stream ends: minutes of a large batch."""


class SessionStream:
    """What one coordinator decodes here. `close` has to be called when the call is over, however it ended."""

    def __init__(self, sessions: Sessions, refusal: Callable[[], SpecsplitError | None]) -> None:
        """`refusal` is asked before each session: an error refuses it, as one of a verifier that drains."""
        self._sessions = sessions
        self._refusal = refusal
        self._carried: dict[int, _Carried] = {}
        self._newest = 0
        self._unsent: list[Answer] = []
        self._more = asyncio.Event()
        self._finished = False
        self._failure: BaseException | None = None

    def receive(self, events: Sequence[tuple[int, ToVerifier | InvalidRequest]]) -> None:
        """Begin and end sessions as the coordinator says."""
        for session, event in events:
            if isinstance(event, Leave):
                if (carried := self._carried.pop(session, None)) is not None:
                    carried.close()
            elif isinstance(event, InvalidRequest):
                self._fail(session, event)
            elif (refusal := self._refused(session)) is not None:
                self._fail(session, refusal)
            else:
                self._begin(session, event)

    def _refused(self, session: int) -> SpecsplitError | None:
        """Why a session may not begin; None: it may."""
        if session <= self._newest:
            return InvalidRequest("session_id", f"is {session}, expected more than {self._newest}")
        self._newest = session
        return self._refusal()

    def _begin(self, session: int, event: Begin) -> None:
        carried = self._carried[session] = _Carried(Held(event.request.stream_interval))
        try:
            carried.live = self._sessions.begin(
                event.request, partial(self._take, session, carried), TraceContext.parse(event.traceparent)
            )
        except SpecsplitError as error:
            self._fail(session, error)
            return
        if event.timeout_s is not None:
            carried.timer = asyncio.get_running_loop().call_later(event.timeout_s, self._expire, session)

    def _take(self, session: int, carried: _Carried, output: Output) -> None:
        held = carried.held
        if isinstance(output, Tokens) and held.holds((output,), len(output.tokens)):
            return
        earlier = held.release()
        if not isinstance(output, SpecsplitError):
            self._put((session, output, earlier))
            if isinstance(output, Finished):
                self._end(session)
            return
        if earlier:
            self._put((session, earlier.pop(), earlier))
        self._put((session, Failed(to_status_bytes(output)), ()))
        self._end(session, output)

    def _end(self, session: int, failure: SpecsplitError | None = None) -> None:
        """Free a session whose last output has come, but not now: telemetry hears of its step behind the outputs."""
        asyncio.get_running_loop().call_soon(self._carried.pop(session).close, failure)

    def _expire(self, session: int) -> None:
        if session in self._carried:
            self._fail(session, DeadlineExceeded("the time that its caller gave the session is over"))

    def _fail(self, session: int, error: SpecsplitError) -> None:
        """End a session, whether it had begun or not."""
        if (carried := self._carried.pop(session, None)) is not None:
            carried.close(error)
        self._put((session, Failed(to_status_bytes(error)), ()))

    def _put(self, answer: Answer) -> None:
        self._unsent.append(answer)
        self._more.set()
        if len(self._unsent) > MAX_UNSENT:
            self.finish(Exhausted(f"{MAX_UNSENT:,} events of this stream were left unread; its sessions end"))

    def finish(self, failure: BaseException | None = None) -> None:
        """Have `answers` end behind what is there now, with `failure` if there is one. A second call does nothing."""
        if not self._finished:
            self._finished, self._failure = True, failure
            self._more.set()

    async def answers(self) -> AsyncGenerator[Sequence[Answer], None]:
        """Yield what has come up since it was last asked, in order, as soon as there is something. Raises what `finish` was given."""
        while True:
            while self._unsent:
                unsent, self._unsent = self._unsent, []
                yield unsent
            if self._finished:
                break
            self._more.clear()
            await self._more.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End every session that is left."""
        carried, self._carried = self._carried, {}
        for each in carried.values():
            each.close()


class _Carried:
    """One session of the stream."""

    def __init__(self, held: Held[Tokens]) -> None:
        self.held = held
        """Tokens that wait for more of them; see stream_interval."""
        self.live: LiveSession | None = None
        self.timer: asyncio.TimerHandle | None = None

    def close(self, failure: SpecsplitError | None = None) -> None:
        """Free the session."""
        if self.timer is not None:
            self.timer.cancel()
        if self.live is not None:
            self.live.end(failure)
