"""A mesh of threads in one process, of which a rank may die. What ranks bring to a collective has to be alike, and is written down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specsplit.errors import RankLost
from specsplit.model.tensors.tracebacks import forget_variables
from specsplit.ranks.mesh import Numbers


@dataclass(frozen=True)
class Collective:
    """What all ranks did together, as it has to be alike on all of them."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.int64


class _Shared:
    """What the ranks have together. Two collectives' worth at once: none is more than one ahead of another."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.brought: list[list[tuple[Collective, Any]]] = [[(Collective("none", ()), None)] * size for _ in range(2)]
        self.barrier = threading.Barrier(size)
        self.why = "a rank of the mesh is dead"


class ThreadMesh:
    """One rank's end, which exchanges tensors too (a TensorMesh)."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank = rank
        self.size = shared.size
        self.begin(shared)

    def begin(self, shared: _Shared) -> None:
        """Nothing has happened yet."""
        self.exchanges = 0
        self.closed = False
        self._last_work: list[Callable[[], object]] = []
        self.pause: Callable[[], object] = lambda: None
        """Called before and after the ranks meet."""
        self.collectives: list[Collective] = []
        """All of them so far."""
        self.told: list[tuple[Numbers, ...]] = []
        """What all ranks have told in every exchange."""
        self._shared = shared

    def exchange(self, numbers: Sequence[int]) -> tuple[Numbers, ...]:
        told = tuple(self._meet(Collective("exchange", (len(numbers),)), tuple(numbers)))
        self.exchanges += 1
        self.told.append(told)
        return told

    def assemble(self, numbers: Sequence[int] = ()) -> tuple[Numbers, ...]:
        return tuple(self._meet(Collective("assemble", (len(numbers),)), tuple(numbers)))

    def synchronize(self) -> None:
        """Collectives are over when they return."""

    def before_parting(self, work: Callable[[], object]) -> None:
        self._last_work.append(work)

    def gather(self, rows: Tensor) -> Tensor:
        return torch.cat(self._meet(Collective("gather", tuple(rows.shape), rows.dtype), rows))

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        parts = self._meet(Collective("reduce_scatter", tuple(partial.shape), partial.dtype), partial)
        return torch.stack([part.chunk(self.size)[self.rank] for part in parts]).sum(0)

    def abort(self, why: str) -> RankLost:
        self._shared.why = f"rank {self.rank} of {self.size} cannot go on, which ends its group: {why}"
        self.die()
        return RankLost(self._shared.why)

    @contextmanager
    def or_leave(self) -> Iterator[None]:
        try:
            yield
        except RankLost:
            raise
        except Exception as error:
            forget_variables(error)
            raise self.abort(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        self.closed = True
        self._part()

    def die(self) -> None:
        """From now on nobody gets anything any more."""
        self._part()
        self._shared.barrier.abort()

    def _part(self) -> None:
        last, self._last_work = self._last_work, []
        for work in reversed(last):
            work()

    @contextmanager
    def dying(self) -> Iterator[None]:
        """Die of whatever is raised inside, so that nobody waits for this rank."""
        try:
            yield
        except BaseException:
            self.die()
            raise

    def _meet(self, what: Collective, own: Any) -> list[Any]:
        assert not self.closed, "who has parted from the others takes part in nothing"
        brought = self._shared.brought[len(self.collectives) % 2]
        brought[self.rank] = what, own
        self.collectives.append(what)
        self.pause()
        try:
            self._shared.barrier.wait(60)
        except threading.BrokenBarrierError:
            raise RankLost(self._shared.why) from None
        self.pause()
        assert {other for other, _ in brought} == {what}, f"ranks meet in different collectives: {brought}"
        return [each for _, each in brought]


def mesh_of(size: int) -> list[ThreadMesh]:
    """The ends of one mesh, by rank."""
    shared = _Shared(size)
    return [ThreadMesh(rank, shared) for rank in range(size)]


def revive(meshes: Sequence[ThreadMesh]) -> None:
    """A mesh begins anew, as if its ranks had been started again."""
    shared = _Shared(len(meshes))
    for mesh in meshes:
        mesh.begin(shared)
