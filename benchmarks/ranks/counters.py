"""What ranks and coordinators count, as their /metrics say, and what the kernel counts of their processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scrape import Sums, fetched, summed


@dataclass(frozen=True, slots=True)
class Counters(Sums):
    """Sums since start, of one verifier or of several."""

    steps: float = 0.0
    """Forwards with tokens of its own."""
    idle: float = 0.0
    """Forwards without tokens of its own."""
    waves: float = 0.0
    imbalance: float = 0.0
    """The sum over turns of what `specsplit_turn_imbalance` is."""
    turns: float = 0.0
    """Turns that were added up in `imbalance`."""
    wake_s: float = 0.0
    """The sum over wakes of the time from work to forward."""
    wakes: float = 0.0
    forward_s: float = 0.0

    @property
    def idle_share(self) -> float:
        """Share of all forwards that were idle."""
        return self.idle / max(1.0, self.steps + self.idle)


_NAMES = {
    "specsplit_steps_total": "steps",
    "specsplit_idle_turns_total": "idle",
    "specsplit_waves_total": "waves",
    "specsplit_turn_imbalance_sum": "imbalance",
    "specsplit_turn_imbalance_count": "turns",
    "specsplit_wake_seconds_sum": "wake_s",
    "specsplit_wake_seconds_count": "wakes",
    "specsplit_verify_time_seconds_sum": "forward_s",
}


def counted(metrics: str) -> Counters:
    """Sums since start, of what a verifier's /metrics say. Raises KeyError if one of them is missing."""
    return summed(Counters, _NAMES, metrics)


def read(urls: Iterable[str]) -> Counters:
    """The counters of all verifiers that tell their metrics at `urls`, summed."""
    return sum((counted(fetched(url)) for url in urls), Counters())


@dataclass(frozen=True, slots=True)
class Processor:
    """What processes have used since they began, all threads together."""

    seconds: float
    """Seconds of processor time."""
    switches: int
    """How often a thread gave its processor up because it had nothing to do: each is a time at which something woke it."""

    @classmethod
    def of(cls, pids: Sequence[int]) -> Processor:
        """Summed over processes that are there."""
        return cls(sum(map(_seconds, pids)), sum(map(_switches, pids)))


def _seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _switches(pid: int) -> int:
    lines = (line for status in Path(f"/proc/{pid}/task").glob("*/status") for line in status.read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
