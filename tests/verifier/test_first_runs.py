"""What the first forward of a size takes is learnt by nobody in the verifier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specsplit.clock import SystemClock
from specsplit.model import CausalLM, CostCurve, Paced, PageTable
from specsplit.model.graphs import Buckets
from specsplit.model.lm.revision import Revision
from specsplit.values import Plan
from specsplit_verifier.policy.planner import Planner
from specsplit_verifier.records.step import ChunkInput, StepInput, StepOutput
from specsplit_verifier.target.runner import TargetRunner, profile
from tests.support.graphs import RecordingCapturer, TorchStatic
from tests.support.toys import random_target
from tests.verifier.results import STEP


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder: Path = random_target(tmp_path_factory.mktemp("random"), 16)
    return CausalLM.load(folder, num_pages=32, page_size=4)


def ran(runner: TargetRunner, tokens: int) -> StepOutput:
    """What comes of a prompt."""
    table = PageTable(runner.target.pool)
    table.reserve(tokens)
    output = runner.run(StepInput(chunks=[ChunkInput.chunk([3] * tokens, table.upto(tokens), session=0, first=0)]))
    table.release()
    return output


def test_a_forward_is_cold_if_none_of_its_size_was_run(target: CausalLM) -> None:
    clock = SystemClock()
    runner = TargetRunner(target, Paced(CostCurve(), clock), None, clock)
    assert [ran(runner, tokens).cold for tokens in (5, 5, 8, 9, 6, 16)] == [True, False, False, True, False, False]


def test_sizes_that_were_measured_at_load_are_not_cold(target: CausalLM) -> None:
    clock = SystemClock()
    runner = TargetRunner(target, Paced(CostCurve(), clock), None, clock)
    assert [seconds.tokens for seconds in profile(runner)] == [1, 8, 32, 64]
    assert [ran(runner, tokens).cold for tokens in (1, 7, 20, 64, 3)] == [False, False, False, False, True]


def test_what_trial_steps_are_run_in_is_captured_before_the_first_step_with_other_weights(tmp_path: Path) -> None:
    served, read = (
        CausalLM.load(random_target(tmp_path / name, 16, seed=seed), num_pages=32, page_size=4)
        for seed, name in enumerate(("first", "second"))
    )
    served.capture_graphs(Buckets(128, 8), lazily=True, capturer=RecordingCapturer(), attention=TorchStatic(served))
    clock = SystemClock()
    runner = TargetRunner(served, Paced(CostCurve(), clock), None, clock)
    assert served.graph_statistics.captured == 1
    runner.take(Revision("second", read, served))
    assert served.graph_statistics.captured == 5, "for 1, 8, 32 and 64 tokens"
    assert served.pool.free_pages == served.pool.total_pages
    assert not ran(runner, 64).failed and served.graph_statistics.replayed == 1


def test_what_a_cold_step_took_does_not_change_what_steps_are_expected_to_take() -> None:
    planner, step = Planner(Plan(), 64), replace(STEP, tokens=10, kv_tokens=10, forward_us=9e6)
    expected_s = planner.expected_s(10, 10)
    planner.observe(replace(step, cold=True))
    assert planner.expected_s(10, 10) == expected_s
    planner.observe(step)
    assert planner.expected_s(10, 10) > 100 * expected_s


def test_a_step_that_was_run_in_halves_is_cold() -> None:
    assert StepOutput().merged_with(StepOutput()).cold, "two forwards take longer than one"
