"""An operator who changes the plan of all verifiers all the while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from benchmarks.fire.mix import PlanChange
from specsplit.client import AsyncClient
from specsplit.errors import DeadlineExceeded, Unavailable

_TIMEOUT_S: Final = 5.0


class Plans:
    """Makes what is drawn, until cancelled."""

    def __init__(self, address: str, draws: Iterator[PlanChange]) -> None:
        self.made = 0
        self._address = address
        self._draws = draws

    async def run(self) -> None:
        """Change the plan. That the coordinator is not there just then is as good."""
        async with AsyncClient(self._address) as client:
            for change in self._draws:
                await asyncio.sleep(change.after_s)
                try:
                    await client.set_plan(change.changes, change.control, reset=change.reset, timeout_s=_TIMEOUT_S)
                except (Unavailable, DeadlineExceeded):
                    continue
                self.made += 1
