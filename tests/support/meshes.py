"""A mesh of threads in one process, of which a rank may die."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from specsplit.errors import RankLost
from specsplit.ranks.mesh import Numbers


class _Shared:
    """What the ranks have together. Two turns' numbers at once: none is more than one exchange ahead of another."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.told: list[list[Any]] = [[()] * size, [()] * size]
        self.barrier = threading.Barrier(size)


class ThreadMesh:
    """One rank's end."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank = rank
        self.size = shared.size
        self.exchanges = 0
        self._shared = shared

    def exchange(self, numbers: Sequence[int]) -> tuple[Numbers, ...]:
        return self.swap(tuple(numbers))

    def swap(self, value: object) -> tuple[Any, ...]:
        """Everybody's, by rank."""
        told = self._shared.told[self.exchanges % 2]
        told[self.rank] = value
        try:
            self._shared.barrier.wait(60)
        except threading.BrokenBarrierError:
            raise RankLost("a rank of the mesh is dead") from None
        self.exchanges += 1
        return tuple(told)

    def die(self) -> None:
        """From now on nobody gets anything any more."""
        self._shared.barrier.abort()

    @contextmanager
    def dying(self) -> Iterator[None]:
        """Die of whatever is raised inside, so that nobody waits for this rank."""
        try:
            yield
        except BaseException:
            self.die()
            raise


class TensorThreadMesh(ThreadMesh):
    """One that exchanges tensors too."""

    def assemble(self) -> None:
        self.swap(None)

    def gather(self, rows: Tensor) -> Tensor:
        return torch.cat(self.swap(rows))

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        return torch.stack(self.swap(partial)).sum(0).chunk(self.size)[self.rank]

    def leave(self, why: str) -> RankLost:
        self.die()
        return RankLost(f"rank {self.rank} of {self.size} cannot go on: {why}")


def tensor_mesh_of(size: int) -> list[TensorThreadMesh]:
    """The ends of one mesh, by rank."""
    shared = _Shared(size)
    return [TensorThreadMesh(rank, shared) for rank in range(size)]


def mesh_of(size: int) -> list[ThreadMesh]:
    """The ends of one mesh, by rank."""
    shared = _Shared(size)
    return [ThreadMesh(rank, shared) for rank in range(size)]
