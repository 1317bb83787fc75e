"""The answers that are on their way to callers, whichever protocol they asked in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, TypeVar

from specsplit.errors import Cancelled, SpecsplitError, quoted
from specsplit.generation.contexts import at_end
from specsplit.generation.listener import Listener
from specsplit.generation.response_buffer import Answered, ResponseBuffer, Write
from specsplit.requests import Delta, GenerateRequest
from specsplit.rpc import Context, caller
from specsplit.stream_interval import Held

_log = logging.getLogger(__name__)
Asked = TypeVar("Asked")


class Generates(Protocol):
    """Has requests generated."""

    async def generate(
        self, request: GenerateRequest, remaining_s: Callable[[], float | None], client: str, listener: Listener
    ) -> None:
        """Generate the answer, and have `listener` hear it; return when each of its choices has ended.

        `client`: who asks; empty: nobody in particular. Raises SpecsplitError; an error of one choice ends the others.
        """
        ...

    def refused(self, error: SpecsplitError) -> None:
        """Note a request that could not be read."""
        ...


class Delivery:
    """Has requests generated, and their answers read by who asked."""

    def __init__(self, generator: Generates, *, max_unread_bytes: int, unread_s: float) -> None:
        self._generator = generator
        self._max_unread_bytes = max_unread_bytes
        self._unread_s = unread_s
        self._unread: dict[ResponseBuffer[Any], tuple[str, str]] = {}
        """Whose they are, and by what name: the caller's, and the id that he gave his request."""
        self._read = asyncio.Event()
        self._read.set()

    async def delivered(self) -> None:
        """Return when no answer is on its way to a caller."""
        await self._read.wait()

    def read(self, parse: Callable[[Asked], GenerateRequest], message: Asked) -> GenerateRequest:
        """Parse a request; the generator hears of one that cannot be parsed. Raises what `parse` raises."""
        try:
            return parse(message)
        except SpecsplitError as error:
            self._generator.refused(error)
            raise

    async def answer(
        self, asked: GenerateRequest, context: Context, write: Write[Answered]
    ) -> AsyncGenerator[Answered, None]:
        """Yield the messages that `write` makes of the events of an answer. Raises SpecsplitError, Cancelled if it is aborted.

        The caller has to close the generator.
        """
        client = caller().name
        generate = partial(self._generator.generate, asked, context.time_remaining, client)
        held = [Held[Delta](asked.stream_interval) for _ in range(asked.n)]
        cut = _cutting(asyncio.current_task())
        response = ResponseBuffer(generate, held, write, self._max_unread_bytes, self._unread_s, cut)
        self._unread[response] = client, asked.request_id
        self._read.clear()
        at_end(context, partial(self._close, response))
        try:
            async with aclosing(response.read()) as messages:
                async for message in messages:
                    yield message
        finally:
            self._close(response)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End those of these requests that the present caller has made; an id that none of his requests has is let pass."""
        client = caller().name
        wanted = {(client, request_id) for request_id in request_ids if request_id}
        for response, asked in self._unread.items():
            if asked in wanted:
                response.abort(Cancelled(f"request {quoted(asked[1])} was aborted"))

    def _close(self, response: ResponseBuffer[Any]) -> None:
        response.close()
        self._unread.pop(response, None)
        if not self._unread:
            self._read.set()


def _cutting(call: asyncio.Task[Any] | None) -> Callable[[], None]:
    """Ends a call whose caller reads nothing, so that it cannot be told why either."""

    def cut() -> None:
        _log.warning("a caller has stopped reading its answer; its call ends")
        if call is not None:
            call.cancel()

    return cut
