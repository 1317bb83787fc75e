"""The sessions that are decoded here, whoever asked for them, and in whichever call. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Protocol

from specsplit.errors import SpecsplitError, Unavailable
from specsplit.generation.gathering import Gathering
from specsplit.generation.inbox import Inbox
from specsplit.grammar import GrammarState
from specsplit.observe import TraceContext
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Tokens
from specsplit_verifier.records.events import Cancel, Constrained, Output
from specsplit_verifier.report.telemetry import Telemetry

TakeOutput = Callable[[Output], None]
"""Called with each output of a session as it comes; an error is the last, and so is Finished. It must not wait."""


class Compiles(Protocol):
    """Compiles the constraint of a request."""

    async def state(self, request: DecodeRequest) -> GrammarState | None:
        """Begin the output of a request; None: it is held to nothing. Raises SpecsplitError."""
        ...


class Sessions:
    """All sessions of one verifier, by the numbers that they get here."""

    def __init__(
        self,
        post: Callable[[DecodeRequest | Constrained | Cancel], None],
        telemetry: Telemetry,
        constraints: Compiles,
        gather_s: float = 0.0,
    ) -> None:
        """`post` tells the engine. `gather_s`: see `Gathering`, by which `run` tells what has come."""
        self._gathering = Gathering(gather_s)
        self._post = post
        self._telemetry = telemetry
        self._constraints = constraints
        self._numbers = count(1)
        self._live: dict[int, LiveSession] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._why = ""
        self.failed = asyncio.Event()
        """Set once nothing can be decoded here any more."""

    def begin(self, request: DecodeRequest, take: TakeOutput, caller: TraceContext | None = None) -> LiveSession:
        """Begin a session, for a caller with this span; it is there until `end` is called.

        Raises Unavailable once the verifier has failed.
        """
        if self.failed.is_set():
            raise Unavailable(self._why)
        session = LiveSession(self, next(self._numbers), take)
        self._live[session.number] = session
        self._idle.clear()
        if request.constraint is None:
            self._submit(session, request, caller, None)
        else:
            session.compiling = asyncio.create_task(self._compile(session, request, caller))
        return session

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[DecodeEvent, None]:
        """Decode one session, for the call that the running task serves, and yield its events one by one.

        Closing the iterator frees it. Raises SpecsplitError.
        """
        came: asyncio.Queue[Output] = asyncio.Queue()
        with self._session(request, came.put_nowait):
            while True:
                output = await came.get()
                if isinstance(output, SpecsplitError):
                    raise output
                yield output
                if isinstance(output, Finished):
                    return

    async def run(self, request: DecodeRequest, take: Callable[[Sequence[DecodeEvent]], bool]) -> None:
        """Decode one session, for the call that the running task serves, until it has ended or is left.

        `take`: called with those events together that came at once; True: it leaves the session. Raises SpecsplitError.
        """
        inbox = Inbox[DecodeEvent](self._gathering, take)
        with self._session(request, partial(_into, inbox)):
            await inbox.over()

    @contextmanager
    def _session(self, request: DecodeRequest, take: TakeOutput) -> Generator[None]:
        session, failure = self.begin(request, take, self._telemetry.caller()), None
        try:
            yield
        except SpecsplitError as error:
            failure = error
            raise
        finally:
            session.end(failure)

    async def _compile(self, session: LiveSession, request: DecodeRequest, caller: TraceContext | None) -> None:
        try:
            grammar = await self._constraints.state(request)
        except SpecsplitError as error:
            session.take(error)
        else:
            self._submit(session, request, caller, grammar)

    def _submit(
        self,
        session: LiveSession,
        request: DecodeRequest,
        caller: TraceContext | None,
        grammar: GrammarState | None,
    ) -> None:
        session.submitted = True
        traceparent = self._telemetry.submitted(session.number, request, caller)
        submitted = replace(request, session=session.number, traceparent=traceparent)
        self._post(submitted if grammar is None else Constrained(submitted, grammar))

    def tell(self, session: int, output: Output) -> None:
        """Give an output to who began a session, if it is still there."""
        live = self._live.get(session)
        if live is not None:
            live.take(output)

    def ended(self, session: LiveSession, failure: SpecsplitError | None) -> None:
        """Forget a session."""
        del self._live[session.number]
        if session.submitted:
            self._post(Cancel(session.number))
            self._telemetry.ended(session.number, failure)
        if not self._live:
            self._idle.set()

    def fail(self, why: str) -> None:
        """End every session with this sentence, since nothing can be decoded here any more. The first sentence stands."""
        self._why = self._why or why
        self.failed.set()
        for session in [*self._live.values()]:
            session.take(Unavailable(self._why))

    async def gone(self) -> None:
        """Return once no session is there."""
        await self._idle.wait()


def _into(inbox: Inbox[DecodeEvent], output: Output) -> None:
    if isinstance(output, SpecsplitError):
        inbox.end(output)
    else:
        inbox.put((output,), at_once=not isinstance(output, Tokens))
        if isinstance(output, Finished):
            inbox.end()


class LiveSession:
    """One session, from its begin to its end."""

    def __init__(self, sessions: Sessions, number: int, take: TakeOutput) -> None:
        self._sessions = sessions
        self.number = number
        self.take = take
        self.compiling: asyncio.Task[None] | None = None
        """Compiles its constraint."""
        self.submitted = False
        """The engine knows of it."""
        self._over = False

    def end(self, failure: SpecsplitError | None = None) -> None:
        """Free it, wherever it is; `failure` says why it failed, if it did. A second call does nothing."""
        if self._over:
            return
        self._over = True
        if self.compiling is not None:
            self.compiling.cancel()
        self._sessions.ended(self, failure)
