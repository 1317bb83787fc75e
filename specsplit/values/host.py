"""Where a member computes: the machine, the cores of it, and the threads on them. Two members may be in each other's way there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from specsplit.values.checks import check_name, require

MAX_CORE_RANGES: Final = 256
"""Ranges that the cores of a process may lie in."""
MAX_CORES: Final = 2**16
"""Cores of one machine are numbered below that, and a model computes on no more threads."""


class CoreRange(NamedTuple):
    """Cores that are numbered without a gap."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Host:
    """Where one member computes. Raises InvalidRequest for a name that cannot be shown, or cores that are no ascending ranges."""

    machine: str = ""
    """Identity of the machine, the same for all its processes; empty: not told, and then no other member counts as being on it."""
    cores: tuple[CoreRange, ...] = ()
    """Cores that the process may run on, ascending."""
    threads: int = 0
    """Threads that its model computes on."""
    device: str = "cpu"
    """torch device of its model. One that is not the CPU takes no cores worth counting."""

    def __post_init__(self) -> None:
        for name in ("machine", "device"):
            check_name(f"host.{name}", getattr(self, name))
        require(self.threads <= MAX_CORES, "host.threads", f"is {self.threads:,}, expected at most {MAX_CORES:,}")
        free = 0
        for first, last in self.cores:
            ascending = free <= first <= last < MAX_CORES
            require(ascending, "host.cores", f"has {first}-{last}, expected ascending ranges below {MAX_CORES:,}")
            free = last + 1

    @staticmethod
    def ranges(cores: Iterable[int]) -> tuple[CoreRange, ...]:
        """Write core numbers as ranges: of 0, 1, 2 and 5 they are 0-2 and 5."""
        found: list[CoreRange] = []
        for core in sorted(cores):
            if found and found[-1].last == core - 1:
                found[-1] = CoreRange(found[-1].first, core)
            else:
                found.append(CoreRange(core, core))
        return tuple(found)

    @property
    def num_cores(self) -> int:
        """Count the cores."""
        return sum(last - first + 1 for first, last in self.cores)

    @property
    def busy_cores(self) -> int:
        """Cores that the model keeps busy while it computes; 0 on a device of its own."""
        return min(self.threads, self.num_cores) if self.device == "cpu" else 0

    def contention(self, verifier: Host) -> float:
        """Compute which share of a verifier's cores goes to this member's threads while both compute: 0 to 1.

        These are the cores that both together are short of. The share is 0 for members of two machines, where one of the two has not told,
        or computes on no cores, and where the cores are enough for all threads of both.

        Worked example: on cores 0 and 1 a verifier computes on two threads and a drafter on one. Three threads are short of one core, which
        is half of the verifier's two. If the verifier had one thread, there would be a core for each, and nothing to share.
        """
        if not self.machine or self.machine != verifier.machine or not self.busy_cores or not verifier.busy_cores:
            return 0.0
        together = self.num_cores + verifier.num_cores - self._common(verifier)
        return max(0, self.busy_cores + verifier.busy_cores - together) / verifier.busy_cores

    def _common(self, other: Host) -> int:
        """Count the cores that both may run on."""
        pairs = ((mine, others) for mine in self.cores for others in other.cores)
        return sum(max(0, min(a.last, b.last) - max(a.first, b.first) + 1) for a, b in pairs)
