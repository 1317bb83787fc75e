"""A group of ranks as processes: every one calls the same function with its mesh, and what they return is collected.

They are forked from a server that has torch and transformers in memory, since importing those takes seconds. The test's own process
has threads of earlier tests, gRPC's among them, whose locks a fork would copy as they are held.
"""

from __future__ import annotations

import os
import pickle
import random
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from specsplit.model.ranks.mesh import TorchMesh
from tests.support.forked import FORKING

_PORTS = range(10_000, 21_000)
"""Below those that the kernel gives to whoever asks for any: one of those may be somebody else's before it is listened on."""


def free_port() -> int:
    """Draw a port that nobody listens on."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as bound, suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return port


def renew_threads() -> None:
    """Give a process that was forked from one that had called `torch.set_num_threads` a pool of its own.

    It is made at the next such call, which every new thread makes first of all. Two of them at once, and one finds no pool, as
    transformers' do that read a model: `leak_corrupted_threadpool` in caffe2/utils/threadpool/pthreadpool-cpp.cc.
    """
    torch.set_num_threads(1)


def run_ranks(
    size: int,
    work: Callable[..., Any],
    *args: object,
    timeout_s: float = 20.0,
    dead: Sequence[int] = (),
    kind: Callable[[int, int, float], TorchMesh] = TorchMesh,
) -> list[Any]:
    """What `work(mesh, *args)` returns on each of `size` ranks, with a mesh of this kind; None for those that are to die.

    Nobody waits for one that is to die, and hangs, any longer than the others take.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # outlives all ranks, as torchrun's does
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / str(rank) for rank in range(size)]
        ranks = [
            FORKING.Process(
                target=_rank, args=(rank, size, store.port, timeout_s, result, kind, work, args), daemon=True
            )
            for rank, result in enumerate(results)
        ]
        for rank in ranks:
            rank.start()
        for number, rank in enumerate(ranks):
            if number not in dead:
                rank.join(60)
        for number in dead:
            ranks[number].kill()
            ranks[number].join()
        del store
        codes = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.kill()
        assert [rank for rank, code in enumerate(codes) if code != 0] == list(dead), codes
        return [None if rank in dead else pickle.loads(result.read_bytes()) for rank, result in enumerate(results)]


def _rank(
    rank: int,
    size: int,
    port: int,
    timeout_s: float,
    result: Path,
    kind: Callable[[int, int, float], TorchMesh],
    work: Callable[..., Any],
    args: Sequence[object],
) -> None:
    renew_threads()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    mesh = kind(rank, size, timeout_s)
    result.write_bytes(pickle.dumps(work(mesh, *args)))
    mesh.close()
