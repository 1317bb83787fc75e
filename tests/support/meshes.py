"""A mesh of threads in one process, of which a rank may die."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from specsplit.errors import RankLost
from specsplit.model.mesh import Numbers


class _Shared:
    """What the ranks have together. Two turns' numbers at once: none is more than one exchange ahead of another."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.told: list[list[Numbers]] = [[()] * size, [()] * size]
        self.barrier = threading.Barrier(size)
        self.why = "a rank of the mesh is dead"


class ThreadMesh:
    """One rank's end."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank = rank
        self.size = shared.size
        self.exchanges = 0
        self.closed = False
        self.pause: Callable[[], object] = lambda: None
        """Called before and after every exchange with the others."""
        self._shared = shared

    def exchange(self, numbers: Sequence[int]) -> tuple[Numbers, ...]:
        assert not self.closed, "who has parted from the others takes part in nothing"
        told = self._shared.told[self.exchanges % 2]
        told[self.rank] = tuple(numbers)
        self.pause()
        try:
            self._shared.barrier.wait(60)
        except threading.BrokenBarrierError:
            raise RankLost(self._shared.why) from None
        self.pause()
        self.exchanges += 1
        return tuple(told)

    def leave(self, why: str) -> RankLost:
        self._shared.why = f"rank {self.rank} of {self.size} cannot go on, which ends its group: {why}"
        self.die()
        return RankLost(self._shared.why)

    def close(self) -> None:
        self.closed = True

    def die(self) -> None:
        """From now on nobody gets anything any more."""
        self._shared.barrier.abort()


def mesh_of(size: int) -> list[ThreadMesh]:
    """The ends of one mesh, by rank."""
    shared = _Shared(size)
    return [ThreadMesh(rank, shared) for rank in range(size)]
