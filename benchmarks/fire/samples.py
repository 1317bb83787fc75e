"""What processes hold, sampled while they run: memory, descriptors and threads as the kernel says, sessions and the like as they say."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.fire.logs import Logs
from benchmarks.scrape import fetched, samples
from specsplit.cli.local import Child

RSS, DESCRIPTORS, THREADS, TASKS, SESSIONS, PAGES = (
    "RSS",
    "file descriptors",
    "threads",
    "tasks",
    "open sessions",
    "pages",
)
_TOLD: Final = {
    "specsplit_running_requests": SESSIONS, "specsplit_queued_requests": SESSIONS, "specsplit_running_sessions": SESSIONS,
    "specsplit_waiting_sessions": SESSIONS, "specsplit_open_sessions": SESSIONS, "specsplit_kv_pages_used": PAGES,
    "specsplit_tasks": TASKS,
}  # fmt: skip
_SCRAPE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Life:
    """One process, from its start to its end; whoever is started again is another one."""

    name: str
    pid: int


@dataclass
class Samples:
    """What every process held, by the time."""

    lives: dict[Life, list[tuple[float, dict[str, float]]]] = field(default_factory=dict)
    """(seconds by time.monotonic(), amounts by name)."""

    async def take(self, children: Sequence[Child], logs: Logs) -> None:
        """One sample of every process that there is. What a stopped one does not say is left out."""
        there = [child for child in children if child.alive]
        for child, amounts in zip(
            there, await asyncio.gather(*(_amounts(child, logs) for child in there)), strict=True
        ):
            if amounts:
                self.lives.setdefault(Life(child.name, child.pid), []).append((time.monotonic(), amounts))

    async def keep(self, children: Callable[[], Sequence[Child]], logs: Logs, every_s: float) -> None:
        """Take samples of those that there are then until cancelled, and note who has died."""
        while True:
            await self.take(children(), logs)
            logs.look(children())
            await asyncio.sleep(every_s)

    def write(self, file: Path) -> None:
        """A line of JSON for every sample."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf-8") as lines:
            for life, taken in self.lives.items():
                for at, amounts in taken:
                    print(
                        json.dumps({"process": life.name, "pid": life.pid, "at_s": round(at, 2)} | amounts), file=lines
                    )


async def _amounts(child: Child, logs: Logs) -> dict[str, float]:
    """What the kernel says of a process, and what it says itself unless it is stopped or not up yet; nothing if it is gone."""
    told: dict[str, float] = {}
    with suppress(OSError, TimeoutError):
        if url := logs.metrics(child.name):
            async with asyncio.timeout(_SCRAPE_S):
                told = told_by(await asyncio.to_thread(fetched, url, _SCRAPE_S))
    with suppress(OSError):
        return held_by(child.pid) | told
    return {}


def told_by(metrics: str) -> dict[str, float]:
    """What a process says of itself, summed by name."""
    found: dict[str, float] = {}
    for sample, value in samples(metrics):
        if sample in _TOLD:
            found[_TOLD[sample]] = found.get(_TOLD[sample], 0.0) + value
    return found


def held_by(pid: int) -> dict[str, float]:
    """What the kernel says of a process; RSS in MiB. Raises OSError if it is gone."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    if "VmRSS" not in status:  # it has given its memory back, and has yet to be waited for
        raise ProcessLookupError(f"process {pid} has ended")
    return {
        RSS: int(status["VmRSS"].split()[0]) / 1024,
        DESCRIPTORS: float(len(os.listdir(f"/proc/{pid}/fd"))),
        THREADS: float(status["Threads"]),
    }  # fmt: skip
