"""Steps of a target that ranks share: one rank's are tried again in halves, while the other is idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from specsplit.clock import SystemClock
from specsplit.model import CausalLM, CostCurve, Paced, PageTable
from specsplit.model.ranks.mesh import TorchMesh
from specsplit.ranks.lockstep import Lockstep
from specsplit_verifier.records.step import ChunkInput, StepInput
from specsplit_verifier.target.runner import TargetRunner
from tests.support.ranks import run_ranks

POISON = ord("#")


def in_halves(mesh: TorchMesh, folder: Path) -> Any:
    """Rank 0 steps four sessions, the third of which fails behind the first layer's attention; rank 1 is idle as often as asked."""
    target, clock = CausalLM.load(folder, num_pages=32, page_size=4, mesh=mesh), SystemClock()
    runner = TargetRunner(target, Paced(CostCurve(), clock), None, clock, Lockstep(mesh, clock))
    if mesh.rank:
        for _ in range(6):  # four, two and two, one once more, and one
            runner.run(StepInput())
        return None
    poisoned: list[bool] = []

    def look(_: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        poisoned.append(bool((kwargs["input_ids"] == POISON).any()))

    def fail(_: nn.Module, __: Any, ___: Any) -> None:
        if poisoned[-1]:
            raise torch.OutOfMemoryError("none left for this one")

    layers: Any = target.model.model.layers
    target.model.register_forward_pre_hook(look, with_kwargs=True)
    layers[0].self_attn.register_forward_hook(fail)
    chunks: list[ChunkInput] = []
    for session, text in enumerate(("ab", "cd", "#", "ef")):
        table = PageTable(target.pool)
        table.reserve(len(text))
        chunks.append(ChunkInput.chunk(list(text.encode()), table.upto(len(text)), session=session, first=0))
    output = runner.run(StepInput(chunks=chunks))
    return {session: str(error) for session, error in output.failed.items()}, len(poisoned)


def test_a_step_that_is_tried_again_in_halves_is_more_turns_for_an_idle_rank(alphabet: Path) -> None:
    (failed, forwards), _ = run_ranks(2, in_halves, alphabet)
    assert failed == {2: "the target failed on this session, twice in a row: OutOfMemoryError: none left for this one"}
    assert forwards == 6
