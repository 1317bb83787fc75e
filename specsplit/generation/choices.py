"""The streams of a request's choices as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

T = TypeVar("T")
MOST_WAITING: Final = 64
"""Events that wait to be taken, at most: the streams wait then, and bound what comes in on them."""


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Merge streams: yield the events of all of them as they come, those of one stream in order.

    The first failure ends all of them and is raised. Closing this generator closes all of them.
    """
    came: asyncio.Queue[T | asyncio.Task[None]] = asyncio.Queue()
    room = asyncio.Semaphore(MOST_WAITING)
    pumps = [asyncio.create_task(_pump(stream, came, room)) for stream in streams]
    for pump in pumps:
        pump.add_done_callback(came.put_nowait)
    running = len(pumps)
    try:
        while running:
            event = await came.get()
            if isinstance(event, asyncio.Task):
                event.result()
                running -= 1
            else:
                room.release()
                yield event
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    stream: AsyncGenerator[T, None], came: asyncio.Queue[T | asyncio.Task[None]], room: asyncio.Semaphore
) -> None:
    async with aclosing(stream):
        async for event in stream:
            await room.acquire()
            came.put_nowait(event)
