"""The choices of a request, which run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from specsplit.requests import Delta


def of_choice(deltas: Sequence[Delta], index: int) -> Sequence[Delta]:
    """Mark deltas as those of the choice with this index."""
    return [replace(delta, index=index) for delta in deltas] if index else deltas


async def all_of(choices: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all of them, at least one, until each has ended. The first failure ends the others and is raised."""
    if len(choices) == 1:
        await choices[0]
        return
    tasks = [asyncio.create_task(each) for each in choices]
    try:
        left = set(tasks)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task in done:
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
