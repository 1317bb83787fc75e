"""The processes that one model is split over (`tp_size`): the first leads, the others follow. Several such models may be ranks of a group.

A follower does nothing but what its leader tells it, and waits for that as long as the leader is there. So a leader that has nothing to
do costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import ProcessGroup

from specsplit.errors import RankLost, SpecsplitError
from specsplit.model.pages.batch import Ints
from specsplit.model.ranks.commands import Leave
from specsplit.model.ranks.mesh import TorchMesh, connected
from specsplit.model.ranks.split import TP
from specsplit.model.tensors.tracebacks import forget_variables

UNHURRIED: Final = timedelta(days=3650)
"""How long a follower waits for a command. That its leader is gone it learns from the closed connection."""
_WITH_COUNT: Final = 1024
"""Numbers of a command that travel together with their count."""


class TensorGroup(TorchMesh):
    """The processes that a rank's model is split over, and those of the other ranks, seen from one. A model that is alone is one rank.

    As a TensorMesh it exchanges with those processes of the other ranks that have the same part. Used by one thread at a time, but for
    `abort`.
    """

    def __init__(
        self, number: int, count: int, timeout_s: float, *, split: int | None = None, device: str = "cpu"
    ) -> None:
        """Meet the others as TorchMesh does; without `split` all processes are of one rank. Raises RankLost."""
        split = split or count
        super().__init__(number, count, timeout_s, split=split, device=device)
        self._line: ProcessGroup | None = None
        """The connection that commands go over; None once it is closed."""
        ranks = [list(range(first, first + split)) for first in range(0, count, split)]
        with self._all_taking_part():
            processes = connected(ranks, timedelta(seconds=timeout_s))
            self._line = connected(ranks, UNHURRIED, "gloo")
        self.processes: Final = DeviceMesh.from_group(processes, self._device.type, mesh_dim_names=(TP,))
        """The processes of this rank, in the form in which torch knows the processes that a model is split over."""

    @property
    def leader(self) -> int:
        """The number of the process that leads this rank."""
        return self.rank * (self.count // self.size)

    @property
    def leads(self) -> bool:
        """True for the process that the others of its rank follow."""
        return self.number == self.leader

    def tell(self, command: Ints) -> None:
        """Have all followers do this. Raises RankLost."""
        message = torch.zeros(1 + _WITH_COUNT, dtype=torch.int64)
        message[0] = len(command)
        message[1 : 1 + len(command)] = torch.from_numpy(command[:_WITH_COUNT])
        self._broadcast(message)
        if len(command) > _WITH_COUNT:
            self._broadcast(torch.from_numpy(command[_WITH_COUNT:]))

    def hear(self) -> Ints:
        """Wait for what the leader tells next, however long that takes. Raises RankLost if the leader is gone."""
        message = torch.empty(1 + _WITH_COUNT, dtype=torch.int64)
        self._broadcast(message)
        count = int(message[0])
        rest = torch.empty(max(0, count - _WITH_COUNT), dtype=torch.int64)
        if len(rest):
            self._broadcast(rest)
        return np.concatenate((message[1 : 1 + count].numpy(), rest.numpy()))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run the block together with the other processes of the rank, devices included. Raises RankLost, as `or_leave` does."""
        with self.or_leave():
            yield
            self.synchronize()

    @contextmanager
    def or_leave(self) -> Iterator[None]:
        """End the group if the block fails. An error of a collective may mean that another process is gone, which is found out then."""
        with self._all_taking_part():
            try:
                yield
            except Exception as error:
                if isinstance(error, RankLost) or _of_a_collective(error):
                    raise
                forget_variables(error)
                raise self.abort(f"{type(error).__name__}: {error}") from error

    def blamed(self, error: SpecsplitError) -> SpecsplitError:
        """The error to raise where `error` ends loading: RankLost if another process has said why it ended the group, else `error`."""
        if why := self._first_said(self._missing()):
            return RankLost(why)
        self.abort(str(error))
        return error

    def close(self) -> None:
        """Part from the others. A leader first tells its followers to leave; that they are gone already is no failure."""
        if self.leads and self._line is not None:
            with suppress(RankLost):
                self.tell(Leave().packed())
        super().close()

    def _disconnect(self) -> None:
        if self._line is not None:
            self._line = None
            self.processes._pg_registry.clear()  # pyright: ignore[reportPrivateUsage] (whoever holds a group holds its connections too)
        super()._disconnect()

    def _cut(self) -> None:
        self._part()  # first: NCCL waits for graphs that use a connection
        self._abort_own()
        super()._cut()

    def _abort_own(self) -> None:
        """Abort the connections of this class; the base class closes the others. Another thread may be here too."""
        if (line := self._line) is not None:
            with suppress(RuntimeError):
                line.abort()
            with suppress(RuntimeError):
                self.processes.get_group().abort()

    def _broadcast(self, numbers: Tensor) -> None:
        with self._all_taking_part():
            dist.broadcast(numbers, self.leader, group=self._line)


def _of_a_collective(error: Exception) -> bool:
    """True if a collective may have raised this, because of another process."""
    return isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError)
