"""Draws rosters again when members have come or gone, and at times since what verifiers report changes which drafters are best.

To score all pairs may take long in a large cluster, so it is done a slice at a time, and then not again for a while. A drafter that is lost
is struck out of all rosters without waiting for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress

from specsplit_coordinator.cluster.balance import POOL_EVERY_S
from specsplit_coordinator.cluster.rosters import Rosters
from specsplit_coordinator.members.registry import Registry

_log = logging.getLogger(__name__)

GATHER_S = 0.1
"""Changes are gathered for so long: a rolling restart, or a cluster that starts, changes every roster with every member."""
REST = 9
"""Times as long as the rosters took to draw is the least time to the next, so that a large cluster spends a tenth of its time on them."""
SLICE_S = 0.005
"""For so long rosters are drawn before the event loop does what else is to be done."""


class Drawing:
    """Says when rosters are drawn, and drafters struck out of them."""

    def __init__(self, registry: Registry, rosters: Rosters) -> None:
        self._clock = registry.clock
        self._rosters = rosters
        self._to_draw, self._to_strike = asyncio.Event(), asyncio.Event()
        registry.subscribe(self._to_draw.set)
        registry.subscribe(self._to_strike.set)

    async def run(self) -> None:
        """Draw and strike until cancelled."""
        await asyncio.gather(self._drawing(), self._striking())

    async def _drawing(self) -> None:
        rest_s = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POOL_EVERY_S):
                    await self._to_draw.wait()
            await asyncio.sleep(max(GATHER_S, rest_s))
            self._to_draw.clear()
            rest_s = 0.0
            with _logged():
                rest_s = REST * await self._draw()

    async def _draw(self) -> float:
        """Draw now, a slice at a time; the seconds that took."""
        took, begun = 0.0, self._clock.now()
        for _ in self._rosters.draw():
            if (now := self._clock.now()) - begun >= SLICE_S:
                took += now - begun
                await asyncio.sleep(0)
                begun = self._clock.now()
        return took + self._clock.now() - begun

    async def _striking(self) -> None:
        while True:
            await self._to_strike.wait()
            await asyncio.sleep(GATHER_S)
            self._to_strike.clear()
            with _logged():
                self._rosters.strike()


@contextmanager
def _logged() -> Generator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 (the edge of a task: without it no verifier would hear of a drafter again)
        _log.exception("rosters could not be drawn; they are next time")
