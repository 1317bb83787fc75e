"""How long no caller of a load got anything. An outage that every caller is told of with UNAVAILABLE shows nowhere else."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fire.findings import Findings

STANDSTILL_S: Final = 60.0
"""When nothing has come for so long, requests stand still, whatever was done to the processes."""


@dataclass
class Stillness:
    """Begins when it is made."""

    longest_s: float = 0.0
    """Between two messages to any caller, between the first and the beginning, or between the last and the end."""
    _since: float = field(default_factory=time.monotonic)

    def mark(self) -> None:
        """Something has come, or the load is over."""
        now = time.monotonic()
        self.longest_s, self._since = max(self.longest_s, now - self._since), now

    def report(self, findings: Findings) -> None:
        """Write a row with the longest; that it was a standstill is a fault."""
        told = f"{self.longest_s:.1f} s"
        findings.add("longest time in which nothing came to any caller", told, f"< {STANDSTILL_S:g} s")
        if self.longest_s >= STANDSTILL_S:
            findings.faults.append(f"{findings.part}: nothing came to any caller for {told}")
