"""The processes that one model is split over (`tp_size`): rank 0 leads, the others follow.

A follower does nothing but what its leader tells it, and waits for that as long as the leader is there. So a leader that has nothing to
do costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import ProcessGroup

from specsplit.errors import RankLost, SpecsplitError
from specsplit.model.batch import Ints
from specsplit.model.commands import Leave
from specsplit.model.split import TP
from specsplit.model.torch_mesh import TorchMesh
from specsplit.model.tracebacks import forget_variables

LEADER: Final = 0
"""The rank that leads."""
UNHURRIED: Final = timedelta(days=3650)
"""A follower waits for so long to be told something. That the leader is gone it hears from the closed connection."""
_AT_ONCE: Final = 1024
"""Numbers of a command that travel together with their count."""


class TensorGroup(TorchMesh):
    """The ranks of one model, seen from one of them. Used by one thread at a time, but for `abort`."""

    def __init__(self, rank: int, size: int, timeout_s: float, *, cuda: bool = False) -> None:
        """Meet the others as TorchMesh does. Raises RankLost."""
        super().__init__(rank, size, timeout_s, cuda=cuda)
        assert isinstance(self._group, ProcessGroup), "every rank is in every group"
        self.processes: Final = DeviceMesh.from_group(self._group, "cuda" if cuda else "cpu", mesh_dim_names=(TP,))
        """All of them, as torch knows processes that a model is split over."""
        self._line: ProcessGroup | None = None
        """Commands go over it; None: they go no more."""
        with self._all_taking_part():
            line = dist.new_group(timeout=UNHURRIED, backend="gloo")
        assert isinstance(line, ProcessGroup), "every rank is in every group"
        self._line = line

    @property
    def leads(self) -> bool:
        """True for the rank that the others follow."""
        return self.rank == LEADER

    def tell(self, command: Ints) -> None:
        """Have all followers do this. Raises RankLost."""
        told = torch.zeros(1 + _AT_ONCE, dtype=torch.int64)
        told[0] = len(command)
        told[1 : 1 + len(command)] = torch.from_numpy(command[:_AT_ONCE])
        self._broadcast(told)
        if len(command) > _AT_ONCE:
            self._broadcast(torch.from_numpy(command[_AT_ONCE:]))

    def hear(self) -> Ints:
        """Wait for what the leader tells next, however long that takes. Raises RankLost if the leader is gone."""
        told = torch.empty(1 + _AT_ONCE, dtype=torch.int64)
        self._broadcast(told)
        count = int(told[0])
        rest = torch.empty(max(0, count - _AT_ONCE), dtype=torch.int64)
        if len(rest):
            self._broadcast(rest)
        return np.concatenate((told[1 : 1 + count].numpy(), rest.numpy()))

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all ranks do in here they do together. Whatever fails ends the group, since others wait for this rank: raises RankLost."""
        with self._all_taking_part():
            try:
                yield
                self.settle()
            except Exception as error:
                if isinstance(error, RankLost) or _of_a_collective(error):
                    raise
                forget_variables(error)
                raise self.abort(f"{type(error).__name__}: {error}") from error

    def turn(self, rows: Sequence[int]) -> AbstractContextManager[None]:
        """Nothing has to be agreed upon: who leads has told the rows."""
        return nullcontext()

    def or_leave(self) -> AbstractContextManager[None]:
        """What fails in here ends the group. Raises RankLost."""
        return self.together()

    def blamed(self, error: SpecsplitError) -> SpecsplitError:
        """What to raise where `error` ends this rank's loading: that, or what another rank said when it ended the group by that."""
        for rank in set(range(self.size)).difference(self._missing(), {self.rank}):
            if why := self._said(rank):
                return RankLost(why)
        self.abort(str(error))
        return error

    def dismiss(self) -> None:
        """The leader parts from its followers in peace. That they are gone already is no failure."""
        try:
            self.tell(Leave().packed())
        except RankLost:
            return
        self.close()

    def close(self) -> None:
        """As TorchMesh."""
        self._line = None
        self.processes._pg_registry.clear()  # pyright: ignore[reportPrivateUsage] (whoever holds a group holds its connections too)
        super().close()

    def _cut(self) -> None:
        if self._line is not None:
            with suppress(RuntimeError):  # the base closes what this leaves open
                self._line.abort()
        super()._cut()

    def _broadcast(self, numbers: Tensor) -> None:
        with self._all_taking_part():
            dist.broadcast(numbers, LEADER, group=self._line)


def _of_a_collective(error: Exception) -> bool:
    """True if a collective may have raised this, because of another rank."""
    return isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError)
