"""What runs for as long as something else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

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
