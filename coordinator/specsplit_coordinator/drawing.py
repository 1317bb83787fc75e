"""Draws rosters again when members have come or gone, and at times since what verifiers report changes which drafters are best."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from specsplit_coordinator.balance import POOL_EVERY_S
from specsplit_coordinator.registry import Registry
from specsplit_coordinator.rosters import Rosters

_log = logging.getLogger(__name__)

GATHER_S = 0.1
"""Changes are gathered for so long: a rolling restart, or a cluster that starts, changes every roster with every member."""
REST = 9
"""Times as long as the rosters took to draw is the least time to the next, so that a large cluster spends a tenth of its time on them."""


class Drawing:
    """Says when rosters are drawn."""

    def __init__(self, registry: Registry, rosters: Rosters) -> None:
        self._clock = registry.clock
        self._rosters = rosters
        self._news = asyncio.Event()
        registry.watch(self._news.set)

    async def run(self) -> None:
        """Draw until cancelled."""
        rest_s = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POOL_EVERY_S):
                    await self._news.wait()
            await asyncio.sleep(max(GATHER_S, rest_s))
            self._news.clear()
            rest_s = REST * self._draw()

    def _draw(self) -> float:
        """Draw now; the seconds that took."""
        begun = self._clock.now()
        try:
            self._rosters.draw()
        except Exception:  # noqa: BLE001 (the edge of a task: without it no verifier would hear of a drafter again)
            _log.exception("rosters could not be drawn; they are next time")
        return self._clock.now() - begun
