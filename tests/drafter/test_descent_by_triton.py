"""Descents that attend by Triton's kernels, in its interpreter: they draw what comes level by level, and what the reference says."""

from __future__ import annotations

import pytest

from specsplit.model.attention.triton.attention import TritonAttention
from specsplit.model.lm.runner import ModelRunner
from specsplit.values import Sampling
from specsplit_drafter.drafts.proposer import Children
from tests.drafter.descents import Twin, check, proposer_of
from tests.drafter.head_toys import HeadVerifier, head_of
from tests.drafter.test_descent import MIXES
from tests.drafter.test_heads import SAMPLED, Checked, run
from tests.drafter.toys import deliver, table_of
from tests.support.graphs import RecordingCapturer
from tests.support.kernels import interpreted

pytestmark = interpreted


def by_triton(runner: ModelRunner) -> None:
    """Have a runner attend so to what only the device knows, in parts too."""
    runner.device_planner = TritonAttention(runner.kv, 1, processors_of_device=8, share=16)


@pytest.mark.parametrize("name", ["eagle", "windowed", "latent", "standalone, windows"])
def test_levels_in_one_go_are_those_that_come_one_by_one(name: str) -> None:
    proposers = proposer_of(name, prepare=by_triton), proposer_of(name)
    one, other = (Twin(name, proposer, MIXES["mixed"]) for proposer in proposers)
    found = check(one, other, 4, 5)
    assert [len(children.levels) for children in found] == [3, 1, 3]


def test_what_was_captured_attends_to_a_context_that_has_grown() -> None:
    """It is laid out anew, by a kernel, in every replay."""
    proposer, capturer = Checked("eagle"), RecordingCapturer()
    by_triton(proposer.model.runners[0])
    proposer.capture_descents(capturer)
    table = table_of(proposer, width=2, survival=0.05, levels=3)
    verifier = HeadVerifier(table, (1, 1), [1, 2, 3], head_of("eagle"))
    for _ in range(8):
        verifier.feed()
        table.expand()
        deliver(table, verifier)
        verifier.step()
    assert capturer.replays == proposer.graphs.replayed > proposer.graphs.captured > 0
    assert proposer.drawn > 5
    verifier.close()


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_what_graphs_draw_is_what_the_reference_says(sampling: Sampling) -> None:
    proposer, capturer = Checked("eagle"), RecordingCapturer()
    by_triton(proposer.model.runners[0])
    proposer.capture_descents(capturer)
    run(proposer, head_of("eagle"), sampling=sampling, levels=3, steps=6)
    assert capturer.replays == proposer.graphs.replayed > proposer.graphs.captured > 0
    assert proposer.drawn > 20


def test_where_nobody_plans_on_the_device_levels_come_one_by_one() -> None:
    def by_nobody(runner: ModelRunner) -> None:
        runner.device_planner = None

    proposer = proposer_of("eagle", prepare=by_nobody)
    assert proposer.max_levels == 1
    twin = Twin("eagle", proposer, [Sampling()])
    (children,) = proposer.expand(twin.frontiers(5), 4)
    assert isinstance(children, Children) and not children.levels
