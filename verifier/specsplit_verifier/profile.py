"""What steps of a few sizes take, measured once at start, so that the first sessions are not planned by guesses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specsplit.model.pages import PageTable
from specsplit_verifier.step import ChunkInput, StepInput
from specsplit_verifier.target_runner import Profiled, TargetRunner

_SIZES: Final = (1, 8, 32, 64)


def profile(runner: TargetRunner) -> Iterator[Profiled]:
    """Run a forward of each size that there is room for, twice: the first of a size may be slow for reasons that do not come back."""
    pool = runner.target.pool
    most = min(pool.num_slots, runner.target.info.max_context)
    for size in (each for each in _SIZES if each <= most):
        table = PageTable(pool)
        table.reserve(size)
        step = StepInput(chunks=[ChunkInput.chunk([0] * size, table.upto(size), session=0, first=0)])
        runner.run(step)
        yield Profiled(step.tokens, step.kv_tokens, runner.run(step).forward_s)
        table.release()
