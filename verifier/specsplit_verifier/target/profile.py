"""What steps of a few sizes take, measured once at start, so that the first sessions are not planned by guesses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specsplit.errors import LoadError
from specsplit.model.attention.support import refusing
from specsplit.model.pages.pool import PageTable
from specsplit_verifier.records.step import ChunkInput, StepInput
from specsplit_verifier.target.runner import Profiled, TargetRunner

_SIZES: Final = (1, 8, 32, 64)


def profile(runner: TargetRunner) -> Iterator[Profiled]:
    """Run a forward of each size that there is room for, twice: the first of a size may be slow for reasons that do not come back.

    All ranks of a group do so together. Raises LoadError if one fails, and RankLost.
    """
    pool = runner.target.pool
    most = min(pool.num_slots, runner.target.info.max_context)
    for size in (each for each in _SIZES if each <= most):
        table = PageTable(pool)
        table.reserve(size)
        step = StepInput(chunks=[ChunkInput.chunk([0] * size, table.upto(size), session=0, first=0)])
        _seconds(runner, step)
        seconds = _seconds(runner, step)
        # A forward of a group runs the rows of all ranks; which these are, the turn has told.
        yield Profiled(sum(runner.lockstep.rows) or step.tokens, step.kv_tokens, seconds)
        table.release()


def _seconds(runner: TargetRunner, step: StepInput) -> float:
    failed = f"a first step of {step.tokens} tokens fails (if for want of memory, set kv_tokens lower)"
    with refusing(failed):
        output = runner.run(step)
    for error in output.failed.values():
        raise LoadError(f"{failed}: {error}")
    return output.forward_s
