"""Progress of a part: a line every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from benchmarks.fire.fire import Fire
from benchmarks.fire.load import Load

EVERY_S: Final = 5.0


async def tell(fire: Fire, seconds: float, load: Load, more: Callable[[], str]) -> None:
    """Say how far a part of so many seconds is, until cancelled; `more` is what this part has besides."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(EVERY_S)
        fire.say(
            f"{time.monotonic() - began:.0f} of {seconds:.0f} s: {load.tally.told}; {len(load.running)} running; {more()}"
        )
