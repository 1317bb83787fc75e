"""How long requests stand still after a fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from benchmarks.fire.asking import Asking
from benchmarks.fire.findings import Findings
from benchmarks.fire.mix import Manner
from benchmarks.fire.outcomes import STANDSTILL_S

POLL_S: Final = 0.005
STOOD_STILL_S: Final = 0.5
"""What a request that runs does not wait for its next token."""


@dataclass
class Recoveries:
    """Seconds by what was measured."""

    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds after faults that had no other beside them, by what was measured."""
    missed: int = 0
    """Faults with no other beside them and nothing to measure by: no request ran that had begun to come and was read as it came."""
    standstills: list[str] = field(default_factory=list[str])
    """A sentence on each fault, alone or not, after which requests stood still for STANDSTILL_S or longer."""

    def add(self, what: str, seconds: float | None, *, alone: bool) -> None:
        """One measurement; None: there was nothing to measure by. Of a fault that was not alone only a standstill is kept."""
        if seconds is not None and seconds >= STANDSTILL_S:
            self.standstills.append(
                f"{what}: {seconds:.0f} s or longer{'' if alone else ', with other faults beside it'}"
            )
        if not alone:
            return
        if seconds is None:
            self.missed += 1
        else:
            self.seconds.setdefault(what, []).append(seconds)

    def report(self, findings: Findings, aims: dict[str, str]) -> None:
        """A row of the table for each, in order of their names."""
        for what, seconds in sorted(self.seconds.items()):
            told = f"median {median(seconds):.2f} s, worst {max(seconds):.2f} s, of {len(seconds)}"
            findings.add(f"recovery: {what}", told, aims.get(what, ""))
        measured = [each for seconds in self.seconds.values() for each in seconds]
        stood_still = f"{sum(each > STOOD_STILL_S for each in measured)} of {len(measured)}"
        findings.add(f"recovery: measurements with more than {STOOD_STILL_S:g} s", stood_still)
        findings.add("recovery: faults alone, and without a request to measure by", self.missed)
        findings.must_be_none("standstills after a fault", self.standstills)


def steady(running: Collection[Asking]) -> list[Asking]:
    """The requests that have begun to come, and are read as they come."""
    return [each for each in running if each.moved_at and each.asked.manner is Manner.READ]


async def next_tokens(asked: Collection[Asking], since: float) -> float | None:
    """Seconds from `since` until each of these has had something more, or is over, STANDSTILL_S at most; None if there are none."""
    return await _longest(asked, since, lambda each: each.moved_at)


async def next_drafts(asked: Collection[Asking], since: float) -> float | None:
    """Seconds from `since` until each of these that had accepted drafts has had one again; those that are over before do not count."""
    return await _longest([each for each in asked if each.drafted_at], since, lambda each: each.drafted_at, ended=False)


async def first_token(running: Callable[[], Collection[Asking]], since: float) -> float:
    """Seconds from `since` until any request has had something; STANDSTILL_S if none has by then."""
    while time.monotonic() < since + STANDSTILL_S:
        if moved := [each.moved_at for each in running() if each.moved_at > since]:
            return min(moved) - since
        await asyncio.sleep(POLL_S)
    return STANDSTILL_S


async def _longest(
    asked: Collection[Asking], since: float, moment: Callable[[Asking], float], *, ended: bool = True
) -> float | None:
    waiting, found = list(asked), list[float]()
    while waiting and time.monotonic() < since + STANDSTILL_S:
        found += [moment(each) - since for each in waiting if moment(each) > since]
        if ended:
            found += [time.monotonic() - since for each in waiting if each.over and moment(each) <= since]
        waiting = [each for each in waiting if moment(each) <= since and not each.over]
        await asyncio.sleep(POLL_S if waiting else 0)
    return max([*found, *(STANDSTILL_S for _ in waiting)], default=None)
