"""What ranks do in the tests of sharded models; imported by every one of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.distributed_c10d import ProcessGroup

from specsplit.errors import RankLost
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.layers import sharded
from specsplit.model.layers.sharded import ShardedMlp
from specsplit.model.ranks.mesh import TorchMesh

PARENTS = (-1, 0, 0, 1, 1, 3)


def rows_of(lm: CausalLM, which: Sequence[int]) -> list[list[Row]]:
    """Two forwards: the beginnings of sequences, then a tree behind each and the rest of a prompt."""
    chunks: list[Row] = []
    then: list[Row] = []
    for number in which:
        table = PageTable(lm.pool)
        table.reserve(16)
        tokens = [(31 * number + 7 * place) % 90 + 3 for place in range(16)]
        chunks.append(Row.chunk(tokens[:5], table.upto(5), logits_at=[4]))
        if number % 2:
            then.append(Row.chunk(tokens[5:], table.upto(16), logits_at=[0, 10]))
        else:
            then.append(Row.tree(tokens[5:11], PARENTS, table.upto(11)))
    return [chunks, then]


def forwards(lm: CausalLM, mesh: TorchMesh | None, which: Sequence[int]) -> list[torch.Tensor]:
    """The logits of all forwards of these sequences."""
    made: list[torch.Tensor] = []
    for rows in rows_of(lm, which):
        tokens = sum(row.num_tokens for row in rows)
        told = mesh.exchange([tokens]) if mesh is not None else ((tokens,),)
        with lm.blocks.turn([count for (count,) in told]):
            made.append(lm.forward(rows).clone())
    return made


def logits_of(mesh: TorchMesh, folder: Path, shares: Sequence[Sequence[Sequence[int]]]) -> Any:
    """For every way to share sequences out over the ranks: this rank's logits. And the bytes of what was cut."""
    lm = CausalLM.load(folder, num_pages=64, page_size=4, mesh=mesh)
    made = [forwards(lm, mesh, share[mesh.rank]) for share in shares]
    mlps = [module for module in lm.model.modules() if isinstance(module, ShardedMlp)]
    cut = [each for mlp in mlps for name, each in mlp.named_parameters() if "proj" in name]
    held = sum(each.untyped_storage().nbytes() for each in cut)
    return [[each.numpy() for each in forward] for forward in made], len(mlps), held


def failing(mesh: TorchMesh, folder: Path) -> Any:
    """Rank 1 fails in the attention of the second layer; the others get their logits, and then all step once more."""
    lm = CausalLM.load(folder, num_pages=64, page_size=4, mesh=mesh)
    layers: Any = lm.model.model.layers
    failures: list[str] = []

    def fail(_: nn.Module, __: Any, ___: Any = None) -> None:
        raise torch.OutOfMemoryError("none left at layer 1")

    hook = layers[1].self_attn.register_forward_pre_hook(fail, with_kwargs=True) if mesh.rank == 1 else None
    rows = rows_of(lm, [mesh.rank])[0]
    made: list[Any] = []
    for _ in range(2):
        told = mesh.exchange([sum(row.num_tokens for row in rows)])
        try:
            with lm.blocks.turn([count for (count,) in told]):
                made.append(lm.forward(rows).numpy())
        except torch.OutOfMemoryError as error:
            failures.append(str(error))
        if hook is not None:
            hook.remove()
    return made, failures


def out_of_memory(*_: Any) -> Any:
    raise torch.OutOfMemoryError("none left")


def failing_part(mesh: TorchMesh, folder: Path, where: str) -> str:
    """Rank 1, which is idle, cannot do its part for the others' rows."""
    lm = CausalLM.load(folder, num_pages=64, page_size=4, mesh=mesh)
    if mesh.rank == 1:
        mlp = next(module for module in lm.model.modules() if isinstance(module, ShardedMlp))
        places: dict[str, tuple[Any, str]] = {
            "its part of a block": (mlp.block.gate_proj, "forward"),
            "room for what is gathered": (mesh, "gather"),
            "where rows lie": (sharded._Layout, "of"),  # pyright: ignore[reportPrivateUsage]
            "rows that are none": (sharded, "no_rows"),
        }
        setattr(*places[where], out_of_memory)
    try:
        forwards(lm, mesh, [0] if mesh.rank == 0 else [])
    except RankLost as error:
        return str(error)
    return ""


def leaving(mesh: TorchMesh, folder: Path) -> str:
    """Rank 1 leaves, and its process stays until the others have noticed -> what they learn, and whether they did."""
    mesh.exchange([mesh.rank])
    noticed = folder / str(mesh.rank)
    if mesh.rank == 1:
        mesh.abort("it has had enough")
        until = time.monotonic() + 40
        while not (folder / "0").exists() or not (folder / "2").exists():
            if time.monotonic() > until:
                return "nobody noticed"
            time.sleep(0.02)
        return ""
    try:
        mesh.exchange([1])
    except RankLost as error:
        noticed.touch()
        return str(error)
    return ""


def dying(mesh: TorchMesh, victim: int, hang_s: float) -> tuple[str, float]:
    """One rank dies, or hangs, after the first exchange: what the others learn, and after how long."""
    mesh.exchange([mesh.rank])
    if mesh.rank == victim:
        time.sleep(hang_s)
        os._exit(9)
    began = time.monotonic()
    try:
        mesh.exchange([1])
    except RankLost as error:
        with suppress(RankLost):
            mesh.exchange([1])  # once lost, always lost, and at once
        return str(error), time.monotonic() - began
    return "", 0.0


def idling(mesh: TorchMesh, folder: Path) -> tuple[int, int]:
    """An idle rank beside a busy one: calls of attention and of blocks in one turn."""
    lm = CausalLM.load(folder, num_pages=64, page_size=4, mesh=mesh)
    calls = {"attention": 0, "collectives": 0}
    for layer in lm.model.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda *_: calls.update(attention=calls["attention"] + 1))
    gather = mesh.gather
    mesh.gather = lambda rows: (calls.update(collectives=calls["collectives"] + 1), gather(rows))[1]  # pyright: ignore[reportAttributeAccessIssue]
    rows = rows_of(lm, [0])[0] if mesh.rank == 0 else []
    for busy in (True, False):
        mine = rows if busy else []
        told = mesh.exchange([sum(row.num_tokens for row in mine)])
        with lm.blocks.turn([count for (count,) in told]):
            lm.forward(mine)
    return calls["attention"], calls["collectives"]


def settling(mesh: TorchMesh, victim: int, how: str) -> tuple[str, float]:
    """A device that never gets done, since one rank is lost: what the others learn, and after how long.

    The victim dies, hangs, or says that it cannot go on.
    """
    mesh.exchange([mesh.rank])
    if mesh.rank == victim:
        if how == "says so":
            mesh.abort("it has had enough")
            return "", 0.0
        time.sleep(8.0 if how == "hangs" else 0.0)
        os._exit(9)
    began, done, abort = time.monotonic(), list[str](), ProcessGroup.abort
    mesh.before_parting(lambda: done.append("parted"))
    ProcessGroup.abort = lambda self: (done.append("closed"), abort(self))[1]
    try:
        mesh._wait_for(lambda: False)  # pyright: ignore[reportPrivateUsage] (what it asks the device is not there without one)
    except RankLost as error:
        return f"{error}: {' '.join(done)}", time.monotonic() - began
    return "", 0.0


class _SeenByBoth(list[Any]):
    """Two threads that ask whether it is empty get their answers at the same time."""

    def __init__(self, member: object) -> None:
        super().__init__([member])
        self._both = threading.Barrier(2)

    def __len__(self) -> int:
        length = super().__len__()
        with suppress(threading.BrokenBarrierError):
            self._both.wait(0.5)
        return length


def parting(mesh: TorchMesh) -> list[str]:
    """Two threads end the group at the same time, as those of the model and of the watchdog may -> what is done before."""
    done: list[str] = []
    mesh._last_work = _SeenByBoth(lambda: done.append("parted"))  # pyright: ignore[reportPrivateUsage]
    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(mesh._part) for _ in range(2)]:  # pyright: ignore[reportPrivateUsage]
            each.result()
    return done


class _Stream:
    """The stream of a device, which is done when it has been asked that often."""

    def __init__(self, name: str, busy: int, asked: list[str]) -> None:
        self._name, self._busy, self._asked = name, busy, asked

    def record_event(self) -> _Stream:
        return self

    def query(self) -> bool:
        self._asked.append(self._name)
        self._busy -= 1
        return self._busy <= 0


def settling_on_a_second_device(mesh: TorchMesh) -> list[str]:
    """A thread whose own device is the first one waits for the mesh's, the second -> which device was asked whether it is done."""
    asked = list[str]()
    streams = {name: _Stream(name, busy, asked) for name, busy in (("cuda:0", 1), ("cuda:1", 3))}
    current: Any = lambda device=None: streams[str(device or "cuda:0")]  # noqa: E731
    torch.cuda.current_stream, torch.cuda.is_current_stream_capturing = current, lambda: False
    torch.cuda.device = nullcontext  # pyright: ignore[reportAttributeAccessIssue]
    mesh._device = torch.device("cuda:1")  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    mesh.synchronize()
    return asked


def settled(mesh: TorchMesh) -> list[tuple[int, ...]]:
    """What ranks tell one another while they load; a device that gets done is waited for, and one without a GPU is not asked."""
    answers = iter([False, False, True])
    mesh._wait_for(lambda: next(answers))  # pyright: ignore[reportPrivateUsage]
    mesh.synchronize()
    return list(mesh.assemble([mesh.rank, 7]))
