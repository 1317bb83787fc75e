"""The ranks of a group over torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup
from torch.distributed.rendezvous import rendezvous

from specsplit.errors import RankLost
from specsplit.model.tracebacks import forget_variables
from specsplit.ranks.mesh import Numbers

_log = logging.getLogger(__name__)
LOAD_TIMEOUT_S: Final = 1800.0
"""Ranks find one another, and wait for the slowest to load, for at most this long."""
ROLL_CALL_S: Final = 5.0
"""Once a rank is missed, the others get this long to say that they are there."""
POLL_S: Final = 20e-6
"""How often the device is asked whether it is done."""
LOOK_ROUND_S: Final = 0.25
"""How often the others are looked for meanwhile."""
NCCL_WAITS: Final = {"TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""Have NCCL leave it to `settle` to notice a rank that is lost.

With the first set it would ask for the end of each collective by itself, which can neither be captured nor happens in a replay. With the
second its watchdog tears the process down, without a word to the others, nor to those whose sessions are here; torchrun sets that to 1.
See "PYTORCH ProcessGroupNCCL Environment Variables" in torch's documentation, and ADR 28.
"""


class TorchMesh:
    """A Mesh whose ranks exchange tensors too (a TensorMesh). All of them are to stand on alike machines: see ADR 15."""

    def __init__(self, rank: int, size: int, timeout_s: float, *, cuda: bool = False) -> None:
        """Meet the other ranks at MASTER_ADDR:MASTER_PORT of the environment, and wait for them. Raises RankLost.

        A collective that takes longer than `timeout_s` means that a rank is lost.
        """
        self.rank: Final = rank
        self.size: Final = size
        self._timeout_s = timeout_s
        self._why = ""
        """Why the group is at its end; empty: it is not."""
        self._cuda: Final = cuda
        self._last_work: list[Callable[[], object]] = []
        """What is to be done before connections are closed."""
        patient = timedelta(seconds=LOAD_TIMEOUT_S)
        if cuda:
            os.environ.update(NCCL_WAITS)
        try:
            kept, _, _ = next(rendezvous("env://", rank, size, timeout=patient))
            self._store = PrefixStore(f"start/{_start_of(os.environ)}", kept)
            backend, store = "cpu:gloo,cuda:nccl" if cuda else "gloo", PrefixStore("mesh", self._store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patient)
            self._group: ProcessGroup | int | None = dist.new_group(timeout=timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise RankLost(f"rank {rank} of {size} cannot meet the other ranks of its group: {error}") from error

    def exchange(self, numbers: Sequence[int]) -> tuple[Numbers, ...]:
        """Tell every rank these numbers -> everybody's, by rank. All tell equally many. Raises RankLost."""
        own = torch.tensor(numbers, dtype=torch.int64)
        told = torch.empty(self.size, len(own), dtype=torch.int64)
        with self._all_taking_part():
            dist.all_gather(list(told), own, group=self._group)
        return tuple(map(tuple, told.tolist()))

    def assemble(self, numbers: Sequence[int] = ()) -> tuple[Numbers, ...]:
        """Wait until every rank has come here, patiently: loading takes some longer than others -> all numbers. Raises RankLost."""
        own = torch.tensor((0, *numbers), dtype=torch.int64)
        told = torch.empty(self.size, len(own), dtype=torch.int64)
        with self._all_taking_part():
            dist.all_gather(list(told), own)
        return tuple(map(tuple, told[:, 1:].tolist()))

    def settle(self) -> None:
        """Wait until the device has done what it was asked for, captured collectives too. Raises RankLost.

        That takes longer than `timeout_s` if another rank is lost. Over gloo nothing is left to wait for, nor is there in a capture.
        """
        if self._cuda and not torch.cuda.is_current_stream_capturing():
            self._wait_for(torch.cuda.current_stream().record_event().query)

    def before_parting(self, work: Callable[[], object]) -> None:
        """Have `work` called before connections are closed: NCCL keeps one open for as long as there is a graph that uses it."""
        self._last_work.append(work)

    def gather(self, rows: Tensor) -> Tensor:
        """[most, H] of every rank -> [size * most, H], by rank. Raises RankLost."""
        gathered = rows.new_empty(self.size * len(rows), rows.shape[1])
        with self._all_taking_part():
            dist.all_gather(list(gathered.chunk(self.size)), rows.contiguous(), group=self._group)
        return gathered

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        """[size * most, H] of every rank -> [most, H]: this rank's rows of the sum of all. Raises RankLost."""
        own = partial.new_empty(len(partial) // self.size, partial.shape[1])
        with self._all_taking_part():
            if partial.is_cuda:
                dist.reduce_scatter(own, list(partial.contiguous().chunk(self.size)), group=self._group)
                return own
            # gloo would reduce once for each rank: ten times as long with four of them.
            parts = torch.empty_like(partial, memory_format=torch.contiguous_format)
            dist.all_to_all_single(parts, partial.contiguous(), group=self._group)
            return torch.sum(parts.view(self.size, *own.shape), 0, out=own)

    def abort(self, why: str) -> RankLost:
        """End the group, since this rank cannot go on; the others read why. Returns the error to raise. Any thread may call it."""
        if not self._why:
            self._why = f"rank {self.rank} of {self.size} cannot go on, which ends its group: {why}"
            self._sign(self._why)
            self._cut()
        return RankLost(self._why)

    def close(self) -> None:
        """Part from the others in peace: none of them waits for this rank, or will. After `abort` nothing is left to do."""
        self._part()
        self._group = None  # whoever holds a group holds its connections too
        if dist.is_initialized():
            dist.destroy_process_group()

    def _cut(self) -> None:
        """Close the connections to the other ranks, so that those who wait for this one notice at once."""
        self._part()
        try:
            if isinstance(self._group, ProcessGroup):
                self._group.abort()  # destroying it would have NCCL wait for collectives that cannot end
            self.close()
        except (RuntimeError, ValueError) as error:  # what ends the group is to be told all the same
            _log.warning("connections to the other ranks stay open until this process ends: %s", error)

    def _part(self) -> None:
        last, self._last_work = self._last_work, []  # two threads may part at the same time
        for work in reversed(last):
            work()

    def _wait_for(self, done: Callable[[], bool]) -> None:
        """Return once `done` is true. Raises RankLost if that takes too long, or another rank has told meanwhile that the group ends."""
        with self._all_taking_part():
            began = looked = time.monotonic()
            while not done():
                now = time.monotonic()
                if now - began > self._timeout_s:
                    raise RuntimeError("the device still waits for it")
                if now - looked > LOOK_ROUND_S:
                    looked = now
                    if len(self._missing()) < self.size:
                        raise RuntimeError("a rank has said that it cannot go on")
                time.sleep(POLL_S)

    @contextmanager
    def _all_taking_part(self) -> Iterator[None]:
        if self._why:
            raise RankLost(self._why)
        try:
            yield
        except RuntimeError as error:
            if self._why:  # another thread of this rank has ended the group meanwhile, and told why
                raise RankLost(self._why) from error
            forget_variables(error)
            self._cut()  # first: ranks that wait for this one notice at once
            self._why = self._roll_call(error)
            raise RankLost(self._why) from error

    def _roll_call(self, error: RuntimeError) -> str:
        """A sentence that names who is missing, going by who signs that he is there."""
        signed, until = self._sign(""), time.monotonic() + min(ROLL_CALL_S, self._timeout_s)
        if not signed:
            return f"rank 0 of {self.size} is lost: the store that it kept for its group does not answer"
        while len(missing := self._missing()) > 1 and time.monotonic() < until:
            time.sleep(0.02)
        for rank in set(range(self.size)).difference(missing, {self.rank}):
            if why := self._said(rank):
                return why
        who = f"rank {' and '.join(map(str, missing))}" if missing else "a rank"
        return f"{who} of {self.size} is lost, or did not take part within {self._timeout_s:g} s: {_first_line(error)}"

    def _sign(self, why: str) -> bool:
        try:
            self._store.set_timeout(timedelta(seconds=ROLL_CALL_S))
            self._store.set(_key(self.rank), why)
        except RuntimeError:
            return False
        return True

    def _said(self, rank: int) -> str:
        try:
            return self._store.get(_key(rank)).decode()
        except RuntimeError:  # as below
            return ""

    def _missing(self) -> list[int]:
        try:
            return [rank for rank in range(self.size) if not self._store.check([_key(rank)])]
        except RuntimeError:  # who kept the store has seen it too, and gone
            return []


def _start_of(environ: Mapping[str, str]) -> str:
    """What tells this start of the group from earlier ones in the same store, which holds the addresses of ranks that died.

    Only an agent's store outlives its ranks, and with it every rank has that agent's count. Several agents do not count alike, which
    is why they are to leave the store to rank 0 (`Place`).
    """
    kept = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return environ.get("TORCHELASTIC_RESTART_COUNT", "0") if kept else "0"


def _key(rank: int) -> str:
    return f"signed/{rank}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". This is typically")[0]
