"""What the processes of a rank group of split models do in its tests; imported by every one of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specsplit.errors import RankLost
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.graphs import Buckets
from specsplit.model.lm.split_lm import SplitLM, follow
from specsplit.model.ranks.tensor_group import TensorGroup
from specsplit.ranks.demand import EAGER, Demand, of_all
from tests.model.sharded_work import PARENTS
from tests.model.split_work import KEPT, LAYERS, part_of
from tests.support.graphs import RecordingCapturer, TorchStatic

Run = Callable[[Sequence[Row]], list[torch.Tensor]]
SPLIT = 2
IN_TWO = partial(TensorGroup, split=SPLIT)
"""Each rank is two processes."""
BUCKETS = Buckets(32, 4)


def alone(lm: CausalLM, rows: Sequence[Row]) -> list[torch.Tensor]:
    """Logits, and hidden states of all layers."""
    logits, hidden = lm.forward_capturing(rows, LAYERS)
    return [each.clone() for each in (logits, *(hidden[layer] for layer in sorted(hidden)))]


def steps(lm: CausalLM, run: Run, numbers: Sequence[int]) -> list[torch.Tensor]:
    """Three forwards of some sequences: prompts, a tree or the rest of a prompt, and what follows a path of a tree whose KV has moved."""
    made: list[torch.Tensor] = []
    tables = [PageTable(lm.pool) for _ in numbers]
    tokens = [[(31 * number + 7 * place) % 90 + 3 for place in range(16)] for number in numbers]
    for table in tables:
        table.reserve(16)
    made += run([Row.chunk(each[:5], table.upto(5), logits_at=[4]) for each, table in zip(tokens, tables, strict=True)])
    rows = [
        Row.chunk(each[5:14], table.upto(14), logits_at=[0, 8])
        if number % 2
        else Row.tree(each[5:11], PARENTS, table.upto(11))
        for number, each, table in zip(numbers, tokens, tables, strict=True)
    ]
    made += run(rows)
    if trees := [row for number, row in zip(numbers, rows, strict=True) if number % 2 == 0]:
        lm.compact([(row, KEPT) for row in trees])
    return made + run(
        [Row.tree([5], (-1,), table.upto(8 if n % 2 == 0 else 15)) for n, table in zip(numbers, tables, strict=True)]
    )


def agreed(lm: CausalLM, group: TensorGroup, tokens: int, demand: Demand) -> Any:
    """The turn that leaders agree on."""
    told = group.exchange([tokens, *demand.numbers])
    return lm.turn([count for count, *_ in told], of_all([Demand.of(numbers) for _, *numbers in told]))


def in_turn(lm: CausalLM, group: TensorGroup, rows: Sequence[Row], *, eager: bool) -> list[torch.Tensor]:
    demand = EAGER if eager else lm.demand(rows, LAYERS)
    with agreed(lm, group, sum(row.num_tokens for row in rows), demand):
        return alone(lm, rows)


def failing_turn(lm: CausalLM, group: TensorGroup) -> None:
    """Rank 1 fails before its rows are packed; rank 0 has none."""
    with suppress(ValueError), agreed(lm, group, group.rank, lm.demand((), ())):
        if group.rank == 1:
            raise ValueError("its rows cannot be packed")


def trial_turn(lm: CausalLM, group: TensorGroup) -> None:
    """Rank 1 makes a trial; rank 0 has no rows."""
    with agreed(lm, group, group.rank, EAGER if group.rank == 1 else Demand()):
        if group.rank == 1:
            lm.trial()


def served(group: TensorGroup, folder: Path, shares: Sequence[Sequence[Sequence[int]]]) -> Any:
    """For every way to share sequences out over the ranks, eagerly and captured: what a leader's steps gave. And what a process holds."""
    lm, capturer = part_of(folder, group), RecordingCapturer()
    held = bytes_of(lm)
    with group.together():
        lm.capture_graphs(BUCKETS, LAYERS, capturer=capturer, attention=TorchStatic(lm))
    made: list[list[Any]] = []
    if group.leads:
        lm.lead(group)
        for share in shares:
            for eager in (True, False):
                run = partial(in_turn, lm, group, eager=eager)
                made.append([each.numpy() for each in steps(lm, run, share[group.rank])])
            failing_turn(lm, group)
            trial_turn(lm, group)
        group.close()
    else:
        follow(lm, group)
    return made, kv_of(lm).numpy(), held, capturer.captures, capturer.replayed


def kv_of(lm: CausalLM) -> torch.Tensor:
    """All of it but that of the spare page."""
    return lm.kv.data[:, :, : lm.pool.num_slots].clone()


def bytes_of(lm: CausalLM) -> tuple[int, int]:
    """Of the matrices of MLPs, and of those of attention."""
    layers: Any = lm.model.model.layers
    matrices = [(name, each.nbytes) for name, each in layers.named_parameters() if "proj" in name and each.dim() > 1]
    return sum(n for name, n in matrices if "mlp" in name), sum(n for name, n in matrices if "self_attn" in name)


def a_row(lm: CausalLM, group: TensorGroup) -> list[Row]:
    """Of rank 0."""
    if group.rank:
        return []
    table = PageTable(lm.pool)
    table.reserve(8)
    return [Row.chunk(range(3, 11), table.upto(8), logits_at=[7])]


def ended(lm: SplitLM, group: TensorGroup) -> str:
    """Turns in which rank 0 alone has rows, until the group ends -> why."""
    try:
        if not group.leads:
            follow(lm, group)
            return "its leader has left"
        lm.lead(group)
        rows = a_row(lm, group)
        while True:
            in_turn(lm, group, rows, eager=True)
    except RankLost as error:
        return str(error)


def dying(group: TensorGroup, folder: Path, victim: int, pause_s: float, when: str) -> str:
    """One process dies, or hangs for a while, between turns or in the middle of one -> what the others learn."""
    lm = part_of(folder, group)

    def die(*_: Any) -> None:
        time.sleep(pause_s)
        os._exit(9)

    if group.number == victim:
        if when == "between turns":
            die()
        layers: Any = lm.model.model.layers
        layers[1].mlp.register_forward_pre_hook(die)
        layers[1].mlp.block.register_forward_pre_hook(die)
    return ended(lm, group)


def failing(group: TensorGroup, folder: Path, victim: int, where: str) -> list[str]:
    """What all processes learn when one of them runs out of memory in a turn, and how many do while all of them are there."""
    lm = part_of(folder, group)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("none left")

    if group.number == victim:
        layers: Any = lm.model.model.layers
        place = {"attention": layers[1].self_attn.o_proj, "its part of an MLP": layers[1].mlp.block}[where]
        place.register_forward_pre_hook(fail)
    said = ended(lm, group)
    (folder / f"{victim}-{group.number}").touch()
    until = time.monotonic() + 40
    while (noticed := len(list(folder.glob(f"{victim}-*")))) < group.count and time.monotonic() < until:
        time.sleep(0.02)
    return [said, f"{noticed} noticed"]
