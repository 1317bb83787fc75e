"""What the device makes of a step is what the host makes of it: kernels run by triton's interpreter, on the CPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.clock import SystemClock
from specsplit.model import CausalLM, CostCurve, Paced, PageTable
from specsplit_verifier.records.step import StepInput, StepOutput
from specsplit_verifier.target.device_tree_sampler import DeviceTreeSampler
from specsplit_verifier.target.extraction import Extractor
from specsplit_verifier.target.runner import TargetRunner, tree_sampler_for
from specsplit_verifier.target.tree_sampler import HostTreeSampler, TreeSampler
from tests.support.copies import counted_copies
from tests.support.kernels import interpreted
from tests.support.launches import recorded_kernels
from tests.support.steps import drafted, steps
from tests.support.toys import random_target

pytestmark = interpreted


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return CausalLM.load(random_target(tmp_path_factory.mktemp("random"), 16), num_pages=32, page_size=4)


def run(target: CausalLM, tree_sampler: TreeSampler, step: StepInput) -> tuple[StepOutput, torch.Tensor]:
    """What comes of a step, and of the KV."""
    clock = SystemClock()
    target.kv.data.zero_()
    output = TargetRunner(target, Paced(CostCurve(), clock), None, clock, tree_sampler=tree_sampler).run(step)
    assert not output.failed
    return output, target.kv.data.clone()


@given(st.data())
@settings(max_examples=12)
def test_a_step_comes_out_as_on_the_host(target: CausalLM, data: st.DataObject) -> None:
    tables: list[PageTable] = []
    step = data.draw(steps(target, tables))
    expected, expected_kv = run(target, HostTreeSampler(target, Extractor(target)), step)
    found, kv = run(target, DeviceTreeSampler(target, Extractor(target)), step)
    for table in tables:
        table.release()
    assert found.accepted.keys() == expected.accepted.keys() and found.no_pick == expected.no_pick
    for session, made in expected.accepted.items():
        assert (found.accepted[session].path, found.accepted[session].bonus) == (made.path, made.bonus)
        assert found.accepted[session].logprobs == made.logprobs
    assert found.features == expected.features
    assert torch.equal(kv, expected_kv)


def test_an_idle_step_asks_for_nothing(target: CausalLM) -> None:
    output, kv = run(target, DeviceTreeSampler(target, Extractor(target)), StepInput())
    assert (output.accepted, output.features, output.no_pick) == ({}, [], []) and not kv.any()


def test_the_host_settles_steps_of_a_target_that_no_kernel_runs_beside(target: CausalLM) -> None:
    assert isinstance(tree_sampler_for(target, Extractor(target)), HostTreeSampler)


@pytest.mark.parametrize("sessions", [1, 2])
def test_what_a_forward_does_not_read_is_one_copy_and_the_host_waits_once(target: CausalLM, sessions: int) -> None:
    """New sessions, new pages and other widths are in that copy too."""
    tree_sampler, tables = DeviceTreeSampler(target, Extractor(target)), list[PageTable]()
    step = drafted(target, tables, sessions)
    with torch.inference_mode():
        logits, hidden = target.forward_capturing(step.rows, step.layers)
    with counted_copies() as before:
        accept = tree_sampler.prepare(step)
    assert not before, "nothing is done before the forward is under way"
    with counted_copies() as found:
        outcome = accept(logits, hidden)
    for table in tables:
        table.release()
    assert len(outcome.accepted) == sessions
    assert found == {"copies": 1, "waits": 1}


@pytest.mark.slow
def test_no_step_needs_a_kernel_that_was_not_compiled_at_load(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A kernel is compiled for types, for whether numbers are 1 or multiples of 16, and for constants."""
    folder = random_target(tmp_path_factory.mktemp("random"), 16)
    narrow = CausalLM.load(folder, num_pages=100, page_size=4, dtype="bfloat16")
    with recorded_kernels() as compiled:
        tree_sampler = DeviceTreeSampler(narrow, Extractor(narrow))
    by_name = Counter(name for name, *_ in compiled)
    read_logits = {"_best_of_block": 2, "_largest_of_part": 2, "_weigh_part": 2}  # of two types
    assert by_name == {**read_logits, "_bar_of_row": 2, "_best_of_row": 1, "_compact": 1, "_walk": 1}

    @given(st.data())
    @settings(max_examples=12)
    def law(data: st.DataObject) -> None:
        tables: list[PageTable] = []
        step = data.draw(steps(narrow, tables))
        with recorded_kernels() as launched:
            run(narrow, tree_sampler, step)
        for table in tables:
            table.release()
        assert launched <= compiled

    law()
