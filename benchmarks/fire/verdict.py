"""What every part with processes is judged by."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.leaks import BOUNDS, JUDGED_MINUTES, growths
from benchmarks.fire.load import Load
from benchmarks.fire.logs import Logs
from benchmarks.fire.samples import Samples
from benchmarks.leftover import left_over
from specsplit.client import AsyncClient
from specsplit.errors import SpecsplitError
from specsplit.settings import TransportSettings

SETTLE_S: Final = 60.0


def run_out(fire: Fire, work: Coroutine[Any, Any, str]) -> str:
    """What was left when `work` was over, as it says, or what broke it off: what was found by then is judged all the same."""
    try:
        return asyncio.run(work)
    except Exception as error:  # noqa: BLE001 (whatever it was, it is a fault of this run, and told with what was found)
        fire.say(traceback.format_exc())
        return f"the run broke off: {error!r}"


async def settled(address: str, transport: TransportSettings | None = None, members: int | None = None) -> str:
    """What is left when all requests are over, once it is nothing or a minute has passed; `members`: how many there are to be, or any."""
    deadline = time.monotonic() + SETTLE_S
    async with AsyncClient(address, transport) as client:
        while (left := await _left(client, members)) and time.monotonic() < deadline:
            await asyncio.sleep(0.25)
    return left


async def _left(client: AsyncClient, members: int | None) -> str:
    try:
        cluster = await client.cluster(SETTLE_S)
    except SpecsplitError as error:
        return f"the coordinator did not answer: {error}"
    there = [each.member_id for each in cluster.members]
    if members is not None and len(there) != members:
        return f"there were {len(there)} members in the place of {members}: {there}"
    return left_over(cluster)


def conclude(findings: Findings, load: Load, logs: Logs, left: str) -> None:
    """The rows that all parts have, once the cluster is down. `left`: what was there at the end and should not have been."""
    load.tally.report(findings)
    load.stillness.report(findings)
    findings.must_be_none("tracebacks", logs.tracebacks)
    findings.must_be_none("processes that died, or did not leave with status 0", logs.unwell)
    findings.must_be_none("left over when all requests were over", [left] if left else [])


def judge_growth(findings: Findings, samples: Samples, folder: Path) -> None:
    """The rows of what processes held, which is written into `folder` too."""
    samples.write(folder / "samples.jsonl")
    grown = list(growths(samples))
    for what, bound in BOUNDS.items():
        here = [each for each in grown if each.what == what]
        most = max(here, key=lambda each: each.per_minute, default=None)
        told = f"no process lived for {JUDGED_MINUTES:g} minutes" if most is None else most.told
        aim = f"at most {bound.per_minute:g} a minute, or {bound.in_all:g} in all"
        findings.add(f"fastest growth of {what}, of {len(here)} lives", told, aim)
    findings.must_be_none("leaks", [each.told for each in grown if each.leaks])
