"""What the processes of a split model do in its tests; imported by every one of them."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specsplit.errors import LoadError, RankLost, SpecsplitError
from specsplit.features import LAST
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.graphs import Buckets
from specsplit.model.lm.split_lm import SplitLM, follow
from specsplit.model.ranks.split import weight_bytes
from specsplit.model.ranks.tensor_group import TensorGroup
from specsplit.ranks.demand import EAGER
from tests.model.sharded_work import PARENTS
from tests.support.graphs import RecordingCapturer, TorchStatic, WatchedCapturer

PAGES, LONG = 160, 300
LAYERS = (0, 2, LAST)
KEPT = (0, 1, 4)
"""A path of the tree; its KV moves to the front."""


def part_of(folder: Path, group: TensorGroup) -> SplitLM:
    return SplitLM.load(folder, mesh=group, split=group.processes, num_pages=PAGES, page_size=4)


def steps(lm: CausalLM) -> list[torch.Tensor]:
    """Logits and hidden states of prompts, of trees behind them, and of what follows a path of a tree whose KV has moved; then a trial."""
    made: list[torch.Tensor] = []
    tables = [PageTable(lm.pool) for _ in range(3)]
    tokens = [[(31 * number + 7 * place) % 90 + 3 for place in range(40)] for number in range(3)]

    def run(rows: list[Row]) -> None:
        logits, hidden = lm.forward_capturing(rows, LAYERS)
        made.extend((logits.clone(), *(hidden[layer].clone() for layer in sorted(hidden))))

    for table in tables:  # page by page in turn, so that no sequence has its pages side by side
        table.reserve(4)
    for table in tables:
        table.reserve(40)
    run([Row.chunk(each[:9], table.upto(9), logits_at=[3, 8]) for each, table in zip(tokens, tables, strict=True)])
    trees = [Row.tree(each[9:15], PARENTS, table.upto(15)) for each, table in zip(tokens[:2], tables[:2], strict=True)]
    run([*trees, Row.chunk(tokens[2][9:], tables[2].upto(40))])
    lm.compact([(tree, KEPT) for tree in trees])
    run([Row.tree([5], (-1,), table.upto(13)) for table in tables[:2]])
    tables[2].release()
    tables[2].reserve(LONG)  # its mask alone is more than travels at once
    run([Row.chunk([(11 * place) % 90 + 3 for place in range(LONG)], tables[2].upto(LONG), logits_at=[LONG - 1])])
    lm.trial()
    assert len(lm.forward([])) == 0
    return made


def led(group: TensorGroup, folder: Path) -> tuple[list[Any], int, int, int]:
    """What the leader's steps gave (nothing of a follower), and what this process holds: KV heads, bytes of weights, bytes of KV."""
    lm = part_of(folder, group)
    held = lm.kv.data.shape[3], weight_bytes(lm.model), lm.kv.nbytes
    if not group.leads:
        follow(lm, group)
        return [], *held
    lm.lead(group)
    made = steps(lm)
    group.close()
    return [each.numpy() for each in made], *held


def led_captured(group: TensorGroup, folder: Path) -> tuple[list[Any], int, list[int]]:
    """As `led`, with captured forwards -> the leader's steps, how many captures there were, and which were replayed."""
    lm, capturer = part_of(folder, group), RecordingCapturer()
    with group.together():
        lm.capture_graphs(Buckets(32, 4), LAYERS, capturer=capturer, attention=TorchStatic(lm))
    if not group.leads:
        follow(lm, group)
        return [], capturer.captures, capturer.replayed
    lm.lead(group)
    with lm.turn((), EAGER):  # as in the turns of a verifier that has none with others
        made = steps(lm)
    group.close()
    return [each.numpy() for each in made], capturer.captures, capturer.replayed


def lost_captured(group: TensorGroup, folder: Path, where: str) -> tuple[str, list[int]]:
    """The others are missed behind a captured forward, or no graph can be launched -> what is learnt, and graphs held as it ends."""
    lm, capturer, held = part_of(folder, group), WatchedCapturer(), list[int]()
    group.before_parting(lambda: held.append(capturer.held))  # first said, so last done
    with group.together():
        lm.capture_graphs(Buckets(8, 1), capturer=capturer, attention=TorchStatic(lm))
    if where == "a launch":
        capturer.fail(torch.OutOfMemoryError("none left"))
    else:
        group.synchronize = partial(group._wait_for, lambda: False)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    try:
        if not group.leads:
            follow(lm, group)
        lm.lead(group)
        with lm.turn((), EAGER):
            lm.forward(a_row(lm))
    except RankLost as error:
        return str(error), held
    return "", held


def tried(group: TensorGroup, folder: Path) -> list[str]:
    """In which order a process waits for its device with an end, and without one, in a trial."""
    lm, done = part_of(folder, group), list[str]()
    item: Any = torch.Tensor.item
    group.synchronize = lambda: done.append("settled")
    torch.Tensor.item = lambda self: (done.append("asked"), item(self))[1]
    if not group.leads:
        follow(lm, group)
        return done
    lm.lead(group)
    lm.trial()
    group.close()
    return done


def a_row(lm: CausalLM) -> list[Row]:
    table = PageTable(lm.pool)
    table.reserve(8)
    return [Row.chunk(range(3, 11), table.upto(8), logits_at=[7])]


def dying(group: TensorGroup, folder: Path, victim: int, pause_s: float, when: str) -> str:
    """One process dies, or hangs for a while, between forwards or in the middle of one -> what the others learn."""
    lm = part_of(folder, group)

    def die(*_: Any) -> None:
        time.sleep(pause_s)
        os._exit(9)

    if group.number == victim and when == "in a forward":
        layers: Any = lm.model.model.layers
        layers[1].mlp.register_forward_pre_hook(die)
    try:
        if not group.leads:
            if group.number == victim and when == "idle":
                die()
            follow(lm, group)
        else:
            lm.lead(group)
            if victim == group.number and when == "idle":
                die()
            while True:
                lm.forward(a_row(lm))
    except RankLost as error:
        return str(error)
    return "nobody was lost"


def failing(group: TensorGroup, folder: Path, victim: int) -> list[str]:
    """What all processes learn when one of them runs out of memory in a forward, and how many do while all of them are there."""
    lm = part_of(folder, group)

    def fail(_: nn.Module, __: Any) -> None:
        raise torch.OutOfMemoryError("none left")

    if group.number == victim:
        layers: Any = lm.model.model.layers
        layers[1].mlp.register_forward_pre_hook(fail)
    try:
        if group.leads:
            lm.lead(group)
            lm.forward(a_row(lm))
        else:
            follow(lm, group)
    except RankLost as error:
        (folder / f"{victim}-{group.number}").touch()
        until = time.monotonic() + 40
        while len(list(folder.glob(f"{victim}-*"))) < group.count and time.monotonic() < until:
            time.sleep(0.02)
        return [str(error), f"{len(list(folder.glob(f'{victim}-*')))} noticed"]
    return []


def refused(group: TensorGroup, folder: Path, broken: int) -> str:
    """What every process says when the weights cannot be served in one of them."""
    try:
        if group.number == broken:
            raise LoadError("its disk is gone")
        part_of(folder, group)
    except SpecsplitError as error:
        return str(group.blamed(error))
    return ""


def waiting(group: TensorGroup) -> float:
    """How much processor time a follower takes while its leader has nothing to do for a second."""
    if group.leads:
        time.sleep(1.0)
        group.close()
        return 0.0
    began = time.process_time()
    group.hear()
    return time.process_time() - began
