"""One fault, from the deed until the process is there again and requests have gone on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from benchmarks.fire.asking import Asking
from benchmarks.fire.faults import Deed, Fault, Service
from benchmarks.fire.logs import Logs
from benchmarks.fire.recovery import Recoveries, first_token, next_drafts, next_tokens, steady
from specsplit.cli.local import Child, LocalCluster
from specsplit.client import AsyncClient

START_S: Final = 120.0
LEAVE_S: Final = 30.0
"""Who was told to leave does so by then; `drain_s` is 3."""
NEXT: Final = "to the next token of every running request"
CONTINUED_NEXT: Final = "from when it is continued to the next token of every running request"
DRAFTED: Final = "to the next accepted draft of every running request that had some and gets more"
AGAIN: Final = "from when it listens again to the first token"
SERVES: Final = "of that from when it has loaded and says SERVING"
CONTINUED: Final = "from when it is continued to the first token"


@dataclass(frozen=True)
class Strike:
    """The strike of `fault` at `child`, the process that it names."""

    fault: Fault
    child: Child
    cluster: LocalCluster
    logs: Logs
    running: Callable[[], Collection[Asking]]
    """The requests on their way now."""
    recoveries: Recoveries
    """Where it is told how long requests stood still."""
    alone: bool
    """False: another fault lasts beside it, or may."""

    async def run(self) -> None:
        """Return once the process listens again and requests have gone on. Raises Unavailable, DeadlineExceeded if it does not."""
        self.logs.look([self.child])
        asked, struck = steady(self.running()), time.monotonic()
        match self.fault.deed:
            case Deed.KILL | Deed.DRAIN:
                await asyncio.gather(self._replaced(), self._stood_still(asked, struck))
                await self._came_back()
            case Deed.STOP:
                await asyncio.gather(self._stopped(), self._stood_still(asked, struck))
                await self._went_on()
            case Deed.PAUSE:
                await self._stopped()
                await self._stood_still(asked, time.monotonic(), CONTINUED_NEXT)
                await self._went_on()

    async def _replaced(self) -> None:
        """End the process, and after a while have another one listen in its place."""
        if self.fault.deed is Deed.KILL:
            await asyncio.to_thread(self.child.kill)
        else:
            self.child.terminate()
            await asyncio.to_thread(self.child.wait, LEAVE_S)
            self.logs.left([self.child])
            await asyncio.to_thread(self.child.kill)
        await asyncio.sleep(self.fault.for_s)
        await asyncio.to_thread(self.cluster.revive(self.child).wait_listening, START_S)

    async def _stopped(self) -> None:
        """Stop the process for a while."""
        self.child.suspend()
        try:
            await asyncio.sleep(self.fault.for_s)
        finally:
            self.child.resume()

    async def _stood_still(self, asked: Collection[Asking], since: float, what: str = NEXT) -> None:
        """Measure a member's fault by the requests that ran."""
        if self.fault.service is Service.COORDINATOR:
            return
        self._tell(what, await next_tokens(asked, since))
        if self.fault.service is Service.DRAFTER and self.fault.deed is Deed.KILL:
            self._tell(DRAFTED, await next_drafts(asked, since))

    async def _came_back(self) -> None:
        """Measure a new coordinator, through which everything comes, by the first token of any request from now on."""
        if self.fault.service is not Service.COORDINATOR:
            return
        listens = time.monotonic()
        async with AsyncClient(self.cluster.address) as client:
            await client.wait_until_serving(START_S)
        serves = time.monotonic()
        first_s = await first_token(self.running, serves)
        self._tell(AGAIN, first_s + serves - listens)
        self._tell(f"{AGAIN}: {SERVES}", first_s)

    async def _went_on(self) -> None:
        """Measure a coordinator that was stopped, by the first token of any request from now on."""
        if self.fault.service is Service.COORDINATOR:
            self._tell(CONTINUED, await first_token(self.running, time.monotonic()))

    def _tell(self, what: str, seconds: float | None) -> None:
        self.recoveries.add(f"{self.fault.kind}, {what}", seconds, alone=self.alone)
