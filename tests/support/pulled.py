"""What is pushed as it comes, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from specsplit.requests import Delta, Done, GenerateEvent
from specsplit.sessions import DecodeEvent, DecodeRequest
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.verifier_client import VerifierClient
from specsplit_coordinator.members.verifier_session import VerifierSession

T = TypeVar("T")


class Told:
    """A listener that passes on what it hears."""

    def __init__(self, put: Callable[[Sequence[GenerateEvent]], object]) -> None:
        self._put = put

    def hear(self, deltas: Sequence[Delta]) -> None:
        self._put(deltas)

    def end(self, done: Done) -> None:
        self._put((done,))

    async def room(self) -> None:
        """There always is."""


async def pulled(run: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> AsyncGenerator[T, None]:
    """Yield what `run` calls its argument with, then raise what it raises. Closing the generator cancels it."""
    came: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
    running = asyncio.create_task(run(lambda each: came.put_nowait((each,))))
    running.add_done_callback(lambda _: came.put_nowait(None))
    try:
        while (each := await came.get()) is not None:
            yield each[0]
        running.result()
    finally:
        running.cancel()
        await asyncio.wait({running})


def answered(
    generate: Callable[..., Coroutine[Any, Any, None]], *asked: Any
) -> AsyncGenerator[Sequence[GenerateEvent]]:
    """What `Generates.generate` has its listener hear, those together that it hears at once."""
    return pulled(lambda put: generate(*asked, Told(put)))


def decoded(
    client: VerifierClient, verifier: MemberState, request: DecodeRequest
) -> AsyncGenerator[Sequence[DecodeEvent]]:
    """What a session on a verifier brings, those together that came at once."""

    async def decode(put: Callable[[Sequence[DecodeEvent]], None]) -> None:
        def take(events: Sequence[DecodeEvent]) -> bool:
            put(events)
            return False

        await client.decode(verifier, VerifierSession(request, take))

    return pulled(decode)
