"""What runs for as long as something else does, and tells how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.fire.fire import Fire
from benchmarks.fire.load import Load

EVERY_S: Final = 5.0
_THREADS: Final = 32
"""For waiting: more than asyncio's own, which are as few as a machine has processors."""


@asynccontextmanager
async def beside(*running: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While the block runs these do, and threads enough for what waits. What one of them raises ends the block."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "waits"))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in running]
        yield
        for task in tasks:
            task.cancel()


async def tell(fire: Fire, seconds: float, load: Load, more: Callable[[], str]) -> None:
    """Say how far a part of so many seconds is, until cancelled; `more` is what this part has besides."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(EVERY_S)
        fire.say(
            f"{time.monotonic() - began:.0f} of {seconds:.0f} s: {load.tally.told}; {len(load.running)} running; {more()}"
        )
