"""What the device makes of a step is what the host makes of it: kernels run by triton's interpreter, on the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.clock import SystemClock
from specsplit.model import CausalLM, CostCurve, Paced, PageTable
from specsplit_verifier.acceptor import Acceptor, HostAcceptor, acceptor_for
from specsplit_verifier.device_acceptor import DeviceAcceptor
from specsplit_verifier.extraction import Extractor
from specsplit_verifier.step import StepInput, StepOutput
from specsplit_verifier.target_runner import TargetRunner
from tests.support.kernels import interpreted
from tests.support.steps import steps
from tests.support.toys import random_target

pytestmark = interpreted


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return CausalLM.load(random_target(tmp_path_factory.mktemp("random"), 16), num_pages=32, page_size=4)


def run(target: CausalLM, acceptor: Acceptor, step: StepInput) -> tuple[StepOutput, torch.Tensor]:
    """What comes of a step, and of the KV."""
    clock = SystemClock()
    target.kv.data.zero_()
    output = TargetRunner(target, Paced(CostCurve(), clock), None, clock, acceptor=acceptor).run(step)
    assert not output.failed
    return output, target.kv.data.clone()


@given(st.data())
@settings(max_examples=12)
def test_a_step_comes_out_as_on_the_host(target: CausalLM, data: st.DataObject) -> None:
    tables: list[PageTable] = []
    step = data.draw(steps(target, tables))
    expected, expected_kv = run(target, HostAcceptor(target, Extractor(target)), step)
    found, kv = run(target, DeviceAcceptor(target, Extractor(target)), step)
    for table in tables:
        table.release()
    assert found.accepted.keys() == expected.accepted.keys() and found.no_pick == expected.no_pick
    for session, made in expected.accepted.items():
        assert (found.accepted[session].path, found.accepted[session].bonus) == (made.path, made.bonus)
        assert found.accepted[session].logprobs == made.logprobs
    assert found.features == expected.features
    assert torch.equal(kv, expected_kv)


def test_an_idle_step_asks_for_nothing(target: CausalLM) -> None:
    output, kv = run(target, DeviceAcceptor(target, Extractor(target)), StepInput())
    assert (output.accepted, output.features, output.no_pick) == ({}, [], []) and not kv.any()


def test_the_host_settles_steps_of_a_target_that_no_kernel_runs_beside(target: CausalLM) -> None:
    assert isinstance(acceptor_for(target, Extractor(target)), HostAcceptor)
