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
from specsplit.model.tensors.tracebacks import forget_variables
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
"""Have NCCL leave it to `synchronize` to notice a rank that is lost.

With the first set it would ask for the end of each collective by itself, which can neither be captured nor happens in a replay. With the
second its watchdog tears the process down, without a word to the others, nor to those whose sessions are here; torchrun sets that to 1.
See "PYTORCH ProcessGroupNCCL Environment Variables" in torch's documentation, and ADR 28.
"""


class TorchMesh:
    """A Mesh whose ranks exchange tensors too (a TensorMesh). All of them are to stand on alike machines: see ADR 15.

    A rank may be several processes; then what a process exchanges goes to that one of each other rank which has its place there. Whoever
    is lost is named by its number among all processes, which is torchrun's RANK.
    """

    def __init__(self, number: int, count: int, timeout_s: float, *, split: int = 1, device: str = "cpu") -> None:
        """Meet the other processes at MASTER_ADDR:MASTER_PORT of the environment, and wait for them. Raises RankLost.

        `number` is that of this process among `count`, and each rank is `split` of them, one after the other. A collective that takes
        longer than `timeout_s` means that a process is lost. `device` is the one that this process computes on.
        """
        self.number: Final = number
        self.count: Final = count
        self.rank: Final = number // split
        self.size: Final = count // split
        self._timeout_s = timeout_s
        self._why = ""
        """Why the group is at its end; empty: it is not."""
        self._device: Final = torch.device(device)
        self._last_work: list[Callable[[], object]] = []
        """What is to be done before connections are closed."""
        patient = timedelta(seconds=LOAD_TIMEOUT_S)
        cuda = self._device.type == "cuda"
        if cuda:
            os.environ.update(NCCL_WAITS)
        try:
            kept, _, _ = next(rendezvous("env://", number, count, timeout=patient))
            self._store = PrefixStore(f"start/{_start_of(os.environ)}", kept)
            backend, store = "cpu:gloo,cuda:nccl" if cuda else "gloo", PrefixStore("mesh", self._store)
            dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=patient)
            alike = [list(range(place, count, split)) for place in range(split)]
            self._group: ProcessGroup | None = connected(alike, timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise RankLost(f"rank {number} of {count} cannot meet the other ranks of its group: {error}") from error

    def exchange(self, numbers: Sequence[int]) -> tuple[Numbers, ...]:
        """Tell every rank these numbers -> everybody's, by rank. All tell equally many. Raises RankLost."""
        own = torch.tensor(numbers, dtype=torch.int64)
        gathered = torch.empty(self.size, len(own), dtype=torch.int64)
        with self._all_taking_part():
            dist.all_gather(list(gathered), own, group=self._group)
        return tuple(map(tuple, gathered.tolist()))

    def assemble(self, numbers: Sequence[int] = ()) -> tuple[Numbers, ...]:
        """Wait until every process has come here, patiently: loading takes some longer than others -> all numbers, by process.

        Raises RankLost.
        """
        own = torch.tensor((0, *numbers), dtype=torch.int64)
        gathered = torch.empty(self.count, len(own), dtype=torch.int64)
        with self._all_taking_part():
            dist.all_gather(list(gathered), own)
        return tuple(map(tuple, gathered[:, 1:].tolist()))

    def synchronize(self) -> None:
        """Wait until the device has done what it was asked for, captured collectives too. Raises RankLost.

        That takes longer than `timeout_s` if another rank is lost. Over gloo, and in a capture, there is nothing to wait for.
        """
        if self._device.type != "cuda":
            return
        with torch.cuda.device(self._device):  # the thread's own may be another, on which nothing is under way
            if not torch.cuda.is_current_stream_capturing():
                self._wait_for(torch.cuda.current_stream(self._device).record_event().query)

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
            self._why = f"rank {self.number} of {self.count} cannot go on, which ends its group: {why}"
            self._sign(self._why)
            self._cut()
        return RankLost(self._why)

    def close(self) -> None:
        """Part from the others in peace: none of them waits for this rank, or will. After `abort` nothing is left to do."""
        self._part()
        self._disconnect()

    @contextmanager
    def or_leave(self) -> Iterator[None]:
        """What fails in here ends the group: others wait for this rank, or their rows would be wrong without its part. Raises RankLost."""
        try:
            yield
        except RankLost:
            raise
        except Exception as error:
            forget_variables(error)
            raise self.abort(f"{type(error).__name__}: {error}") from error

    def _disconnect(self) -> None:
        self._group = None  # whoever holds a group holds its connections too
        if dist.is_initialized():
            dist.destroy_process_group()

    def _cut(self) -> None:
        """Close the connections to the other ranks, so that those who wait for this one notice at once."""
        self._part()
        try:
            if self._group is not None:
                self._group.abort()  # destroying it would have NCCL wait for collectives that cannot end
            self._disconnect()
        except (RuntimeError, ValueError) as error:  # what ends the group is to be reported all the same
            _log.warning("connections to the other ranks stay open until this process ends: %s", error)

    def _part(self) -> None:
        last, self._last_work = self._last_work, []  # two threads may part at the same time
        for work in reversed(last):
            work()

    def _wait_for(self, done: Callable[[], bool]) -> None:
        """Return once `done` is true. Raises RankLost if that takes too long, or another rank has ended the group meanwhile."""
        with self._all_taking_part():
            began = looked = time.monotonic()
            while not done():
                now = time.monotonic()
                if now - began > self._timeout_s:
                    raise RuntimeError("the device still waits for it")
                if now - looked > LOOK_ROUND_S:
                    looked = now
                    if len(self._missing()) < self.count:
                        raise RuntimeError("a rank has said that it cannot go on")
                time.sleep(POLL_S)

    @contextmanager
    def _all_taking_part(self) -> Iterator[None]:
        if self._why:
            raise RankLost(self._why)
        try:
            yield
        except RuntimeError as error:
            if self._why:  # another thread of this rank has ended the group meanwhile, and said why
                raise RankLost(self._why) from error
            forget_variables(error)
            self._cut()  # first: ranks that wait for this one notice at once
            self._why = self._roll_call(error)
            raise RankLost(self._why) from error

    def _roll_call(self, error: RuntimeError) -> str:
        """A sentence that names who is missing, going by who signs that he is there."""
        signed, until = self._sign(""), time.monotonic() + min(ROLL_CALL_S, self._timeout_s)
        if not signed:
            return f"rank 0 of {self.count} is lost: the store that it kept for its group does not answer"
        while len(missing := self._missing()) > 1 and time.monotonic() < until:
            time.sleep(0.02)
        if why := self._first_said(missing):
            return why
        who = f"rank {' and '.join(map(str, missing))}" if missing else "a rank"
        return f"{who} of {self.count} is lost, or did not take part within {self._timeout_s:g} s: {_first_line(error)}"

    def _sign(self, why: str) -> bool:
        try:
            self._store.set_timeout(timedelta(seconds=ROLL_CALL_S))
            self._store.set(_key(self.number), why)
        except RuntimeError:
            return False
        return True

    def _first_said(self, missing: Sequence[int]) -> str:
        """Why another process that has signed cannot go on; empty if none has said so."""
        signed = sorted(set(range(self.count)).difference(missing, {self.number}))
        return next(filter(None, map(self._said, signed)), "")

    def _said(self, number: int) -> str:
        try:
            return self._store.get(_key(number)).decode()
        except RuntimeError:  # the process that kept the store has gone
            return ""

    def _missing(self) -> list[int]:
        try:
            return [number for number in range(self.count) if not self._store.check([_key(number)])]
        except RuntimeError:  # the process that kept the store has seen it too, and gone
            return []


def connected(lists: Sequence[list[int]], timeout: timedelta, backend: str | None = None) -> ProcessGroup:
    """New connections within each of these lists of processes -> those of the list that this process is in.

    All processes call it at the same time with the same lists, each of them in one. Raises RuntimeError.
    """
    own, _ = dist.new_subgroups_by_enumeration(lists, timeout=timeout, backend=backend)
    assert isinstance(own, ProcessGroup), "every process is in one of the lists"
    return own


def _start_of(environ: Mapping[str, str]) -> str:
    """What tells this start of the group from earlier ones in the same store, which holds the addresses of ranks that died.

    Only an agent's store outlives its ranks, and with it every rank has that agent's count. Several agents do not count alike, which
    is why they are to leave the store to rank 0 (`RankEnvironment`).
    """
    kept = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return environ.get("TORCHELASTIC_RESTART_COUNT", "0") if kept else "0"


def _key(number: int) -> str:
    return f"signed/{number}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". This is typically")[0]
