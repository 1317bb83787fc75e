"""Updates rosters when members have come or gone, and once a second for what verifiers report of drafters.

Scoring all pairs may take long in a large cluster, so it is done a slice at a time, and then not again for a while. A drafter that is gone
is removed from all rosters without waiting for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress

from specsplit_coordinator.cluster.drafter_scorer import REFRESH_EVERY_S
from specsplit_coordinator.cluster.rosters import Rosters
from specsplit_coordinator.members.registry import Registry

_log = logging.getLogger(__name__)

GATHER_S = 0.1
"""Changes are gathered for this long: in a rolling restart, or at the start, every member that comes changes every roster."""
REST = 9
"""An update is followed by a rest of this many times its duration, so that updates take a tenth of the time at most."""
SLICE_S = 0.005
"""An update gives way to the event loop after this long."""


class RosterUpdater:
    """Decides when rosters are updated, and when drafters that are gone are removed from them."""

    def __init__(self, registry: Registry, rosters: Rosters) -> None:
        self._clock = registry.clock
        self._rosters = rosters
        self._changed, self._maybe_gone = asyncio.Event(), asyncio.Event()
        registry.subscribe(self._changed.set)
        registry.subscribe(self._maybe_gone.set)

    async def run(self) -> None:
        """Keep the rosters up to date until cancelled."""
        await asyncio.gather(self._update_forever(), self._remove_forever())

    async def _update_forever(self) -> None:
        rest_s = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_EVERY_S):
                    await self._changed.wait()
            await asyncio.sleep(max(GATHER_S, rest_s))
            self._changed.clear()
            rest_s = 0.0
            with _logged():
                rest_s = REST * await self._update()

    async def _update(self) -> float:
        """Update now, a slice at a time -> the seconds that took, without the pauses."""
        took, begun = 0.0, self._clock.now()
        for _ in self._rosters.update():
            if (now := self._clock.now()) - begun >= SLICE_S:
                took += now - begun
                await asyncio.sleep(0)
                begun = self._clock.now()
        return took + self._clock.now() - begun

    async def _remove_forever(self) -> None:
        while True:
            await self._maybe_gone.wait()
            await asyncio.sleep(GATHER_S)
            self._maybe_gone.clear()
            with _logged():
                self._rosters.remove_gone()


@contextmanager
def _logged() -> Generator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 (the edge of a task: without it no verifier would hear of a drafter again)
        _log.exception("rosters could not be updated; the next update comes as usual")
