"""Processes are killed, stopped, drained and started again under load, while plans change and clients are rude."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

from benchmarks.fire.beside import beside, tell
from benchmarks.fire.faults import Deed, Fault, Service, faults
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import DRAFTERS, Fire
from benchmarks.fire.load import Load
from benchmarks.fire.logs import Logs
from benchmarks.fire.meanwhile import CHANGES, MUTES, change_plans, open_mutely
from benchmarks.fire.outcomes import STANDSTILL_S, Outcome
from benchmarks.fire.recovery import Recoveries
from benchmarks.fire.samples import Samples
from benchmarks.fire.strike import AGAIN, NEXT, Strike
from benchmarks.fire.verdict import conclude, judge_growth, run_out, settled
from specsplit.cli.local import LocalCluster

VERIFIERS, CALLERS = 2, 6
SAMPLE_S: Final = 2.0
_POLL_S: Final = 0.1
AFTERWARDS: Final = 2 * CALLERS
"""How many requests end with their text after the last fault; no more than CALLERS of them were sent before its end."""
SLOWEST_S: Final = 60.0
"""A fault takes no longer on average, with all that is started again."""
PLACES: Final = (Service.COORDINATOR, *(Service.VERIFIER,) * VERIFIERS, *(Service.DRAFTER,) * len(DRAFTERS))
"""In the order of a cluster's children."""
AIMS: Final = {
    f"{Service.DRAFTER} {Deed.KILL}, {NEXT}": "< 1 s",
    f"{Service.VERIFIER} {Deed.KILL}, {NEXT}": "< 3 s",
    f"{Service.COORDINATOR} {Deed.KILL}, {AGAIN}": "< 3 s",
}


def run(fire: Fire, seconds: float) -> Findings:
    """Let a cluster suffer for so long, then see that everything comes to its end."""
    findings = Findings("chaos")
    fire.say(f"{len(fire.known)} texts are known")
    with fire.cluster("chaos", verifiers=VERIFIERS) as (cluster, logs):
        chaos = Chaos(fire, cluster, logs)
        left = run_out(fire, chaos.run(seconds))
    chaos.report(findings, expected_kinds(chaos.lasted_s))
    conclude(findings, chaos.load, logs, left)
    judge_growth(findings, chaos.samples, logs.folder)
    return findings


def expected_kinds(seconds: float) -> int:
    """How many kinds of faults have to strike in `seconds`; each comes once before any comes again."""
    kinds = len(set(PLACES)) * len(Deed)
    return min(kinds, max(1, int(seconds / SLOWEST_S)))


class Chaos:
    """One run. Everything is on one event loop, but for waiting for processes."""

    def __init__(self, fire: Fire, cluster: LocalCluster, logs: Logs) -> None:
        self.load = Load(fire, cluster.address, CALLERS)
        self.samples = Samples()
        self.lasted_s = 0.0
        """For so long faults struck, or were to when it broke off."""
        self._fire = fire
        self._cluster = cluster
        self._logs = logs
        self._meanwhile: Counter[str] = Counter()
        self._recoveries = Recoveries()
        self._struck: Counter[str] = Counter()
        """Faults by kind."""
        self._suffering: dict[str, asyncio.Task[None]] = {}
        """Faults that last, by the name of the process."""
        self._afterwards = 0
        """Requests that ended with their text after the last fault."""

    async def run(self, seconds: float) -> str:
        """What was left when all was over."""
        until, self.lasted_s = time.monotonic() + seconds, seconds
        async with beside(
            self.samples.keep(lambda: self._cluster.children, self._logs, SAMPLE_S),
            open_mutely(self._cluster, self._fire.chance("mutes"), self._meanwhile),
            change_plans(self._cluster.address, self._fire.chance("plans"), self._meanwhile),
            tell(self._fire, seconds, self.load, self._told),
        ):
            async with self.load:
                await self._strike_all(until)
                self.lasted_s -= until - self._fire.ending.sooner(until)
                await self._go_on()
            return await settled(self._cluster.address)

    def report(self, findings: Findings, least: int) -> None:
        """Write the rows that are of chaos alone; fewer kinds of faults than `least` are a fault."""
        findings.add("faults", self._struck.total())
        findings.at_least("kinds of faults", len(self._struck), least)
        for kind, count in sorted(self._struck.items()):
            findings.add(f"of these {kind}", count)
        for what in (CHANGES, MUTES):
            findings.add(what, self._meanwhile[what])
        self._recoveries.report(findings, AIMS)
        findings.at_least("requests that ended with their text after the last fault", self._afterwards, AFTERWARDS)

    def _told(self) -> str:
        return f"{self._struck.total()} faults; now at {', '.join(self._suffering) or 'nobody'}"

    async def _strike_all(self, until: float) -> None:
        """Faults until then, or until the run is told to end; at the end everybody is there."""
        for fault in faults(self._fire.chance("faults"), PLACES):
            await asyncio.sleep(fault.pause_s)
            if time.monotonic() > self._fire.ending.sooner(until):
                break
            self._begin(fault)
            if not fault.joined:
                await self._whole()
        await self._whole()

    def _begin(self, fault: Fault) -> None:
        """Strike, unless that process suffers already. Only a fault that has no other beside it is measured."""
        child = self._cluster.children[PLACES.index(fault.service) + fault.place]
        if child.name in self._suffering:
            return
        alone = not fault.joined and not self._suffering
        strike = Strike(fault, child, self._cluster, self._logs, lambda: self.load.running, self._recoveries, alone)
        self._suffering[child.name] = asyncio.create_task(strike.run())
        self._struck[fault.kind] += 1

    async def _whole(self) -> None:
        """Return once no fault lasts and everybody has joined. Raises Unavailable, DeadlineExceeded."""
        try:
            await asyncio.gather(*self._suffering.values())
        finally:
            self._suffering.clear()
        await asyncio.to_thread(self._cluster.wait_joined)

    async def _go_on(self) -> None:
        """Return when enough requests have ended with their text since, or a standstill later."""
        counts, until = self.load.tally.counts, time.monotonic() + STANDSTILL_S
        before = counts[Outcome.SAME]
        while self._afterwards < AFTERWARDS and time.monotonic() < until:
            await asyncio.sleep(_POLL_S)
            self._afterwards = counts[Outcome.SAME] - before
