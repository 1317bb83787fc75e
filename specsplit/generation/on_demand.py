"""What is made when it is asked for first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class OnDemand(Generic[Made]):
    """One thing, made on a thread when it is asked for first. It lives on one event loop."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._making: asyncio.Task[Made] | None = None

    async def get(self) -> Made:
        """What was made. Raises what making it raises; the next call tries again."""
        if self._making is None or (self._making.done() and self._making.exception() is not None):
            self._making = asyncio.create_task(asyncio.to_thread(self._make))
        return await asyncio.shield(self._making)

    @property
    def made(self) -> Made | None:
        """What was made; None: nothing yet."""
        making = self._making
        return None if making is None or not making.done() or making.exception() is not None else making.result()
