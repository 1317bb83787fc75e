"""What comes of itself after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Return once `condition` holds. Raises TimeoutError if it does not come to that."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)
