"""Callers who ask a cluster for known texts all the while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from benchmarks.fire.asking import HANG_S, Asking
from benchmarks.fire.fire import LONGEST, Fire
from benchmarks.fire.mix import Asked, requests
from benchmarks.fire.outcomes import Stillness, Tally
from specsplit.client import AsyncClient
from specsplit.settings import TransportSettings

Mix = Callable[[random.Random, int, int], Iterator[Asked]]


class Load:
    """A context manager on the event loop: inside it callers ask, each with a connection of his own, one request after the other.

    `fire.known` has to be there before the event loop begins.
    """

    def __init__(
        self, fire: Fire, address: str, callers: int, stream: str = "requests", mix: Mix = requests,
        transport: TransportSettings | None = None, hang_s: float = HANG_S,
    ) -> None:  # fmt: skip
        """`stream` names the draws of this load among those of the seed; a request that is not over after `hang_s` hangs."""
        self.tally = Tally()
        self.stillness = Stillness()
        self.running: set[Asking] = set()
        self._fire = fire
        self._dialled = address, transport
        self._hang_s = hang_s
        self._draws = [mix(fire.chance(f"{stream} {each}"), len(fire.known), LONGEST) for each in range(callers)]
        self._callers: list[asyncio.Task[None]] = []
        self._calm = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.stillness = Stillness()
        self._callers = [asyncio.create_task(self._call(draws)) for draws in self._draws]
        return self

    async def calm(self) -> None:
        """Ask for nothing more, and return when every request is over. Raises what a caller raised, which would be a bug here."""
        self._calm.set()
        await asyncio.gather(*self._callers)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.calm()
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=error is not None)
        self.stillness.mark()

    async def _call(self, draws: Iterator[Asked]) -> None:
        async with AsyncClient(*self._dialled) as client:
            for asked in draws:
                await asyncio.sleep(asked.pause_s)
                if self._calm.is_set():
                    return
                await self._ask(client, asked)

    async def _ask(self, client: AsyncClient, asked: Asked) -> None:
        asking = Asking(self._fire.known[asked.text], asked, self.stillness, self._hang_s)
        self.running.add(asking)
        try:
            outcome, why = await asking.outcome(client)
        finally:
            self.running.discard(asking)
        self.tally.add(outcome, asking.received, asking.sent, why)
        if self.tally.wrong and self.tally.wrong[-1] == (outcome, why):
            self._fire.say(f"{outcome}: {why}")
