"""The memory of processes over time, and whether it grows without bound."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from specsplit.cli.local import Child

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_LEAST: Final = 12
"""Samples without which nothing is said."""
MOST_GROWTH: Final = 64 * 2**20
"""Bytes that a process may grow in the second half of a run: caches fill, and allocators hold on to what they had."""


@dataclass
class Memory:
    """Resident bytes of every process, one sample after the other."""

    samples: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def look(self, children: Mapping[str, Child]) -> None:
        """Take a sample of every process that is there."""
        for name, child in children.items():
            if (found := resident(child.pid)) is not None:
                self.samples.setdefault(name, []).append(found)

    def write(self, path: Path) -> None:
        """All samples, as JSON."""
        path.write_text(json.dumps(self.samples), encoding="utf-8")

    def growth(self, name: str) -> int:
        """Bytes by which a process grew over the second half of its samples, by the medians of the beginning and the end of that."""
        half = self.samples[name][len(self.samples[name]) // 2 :]
        quarter = max(1, len(half) // 4)
        return round(median(half[-quarter:]) - median(half[:quarter]))

    @property
    def faults(self) -> list[str]:
        """A sentence on each process that grew by more than `MOST_GROWTH`."""
        grown = {name: self.growth(name) for name, samples in self.samples.items() if len(samples) >= _LEAST}
        return [
            f"{name} grew by {growth / 2**20:.0f} MiB in the second half"
            for name, growth in grown.items()
            if growth > MOST_GROWTH
        ]

    @property
    def told(self) -> str:
        """Where each began and ended, in MiB, and how it grew in the second half."""
        return "; ".join(
            f"{name} {_mib(samples[0])} → {_mib(samples[-1])} ({self.growth(name) / 2**20:+.1f})"
            for name, samples in self.samples.items()
        )


def resident(pid: int) -> int | None:
    """Bytes of a process that are in memory; None if it is not there."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except (OSError, IndexError):
        return None


def _mib(value: int) -> str:
    return f"{value / 2**20:.0f}"


def shares(values: Sequence[float]) -> str:
    """Half, 99 of 100, and the largest of them, in seconds."""
    ordered = sorted(values)
    if not ordered:
        return "none"
    return f"{ordered[len(ordered) // 2]:.2f}, {ordered[len(ordered) * 99 // 100]:.2f}, {ordered[-1]:.2f}"
