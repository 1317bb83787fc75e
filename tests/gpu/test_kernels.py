"""The kernels on a GPU do what torch and the host do on the CPU, and a step waits for the device once.

These tests have never run: they were written on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.clock import SystemClock
from specsplit.model import CausalLM, CostCurve, Paced, PageTable
from specsplit.model.tensors.staging_buffer import StagingBuffer
from specsplit.model.tensors.transfer import to_host
from specsplit.values import Sampling
from specsplit_verifier.records.step import StepInput
from specsplit_verifier.target.device_tree_sampler import DeviceTreeSampler
from specsplit_verifier.target.extraction import Extractor
from specsplit_verifier.target.runner import TargetRunner, tree_sampler_for
from specsplit_verifier.target.tree_sampler import HostTreeSampler
from tests.support.kernels import (
    DTYPES,
    GPU,
    Rows,
    Walks,
    check_bars,
    check_compaction,
    check_picks,
    check_walk,
    on_a_gpu,
    rows,
    walks,
)
from tests.support.steps import drafted, steps
from tests.support.toys import random_target

pytestmark = [*on_a_gpu, pytest.mark.timeout(300)]


@given(rows(40) | rows(2) | rows(1500) | rows(130_000))
@settings(max_examples=300)
def test_picks_are_those_of_the_cpu_whatever_the_sampling(given_rows: Rows) -> None:
    check_picks(given_rows, GPU)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9, "min_p": 0.01}])
def test_picks_over_a_large_vocabulary_are_those_of_the_cpu(dtype: torch.dtype, filters: dict[str, float]) -> None:
    logits = (torch.randn(64, 128_256, generator=torch.Generator().manual_seed(5)) * 3).to(dtype)
    samplings = [Sampling(0.8, seed=seed, **filters) for seed in range(64)]  # pyright: ignore[reportArgumentType]
    check_picks(Rows(samplings, list(range(64)), list(range(64)), [[]] * 64, logits), GPU)
    check_bars(logits, samplings, GPU)


@given(walks())
@settings(max_examples=200)
def test_trees_are_walked_as_on_the_host(given_walks: Walks) -> None:
    check_walk(given_walks, GPU)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kv_of_accepted_nodes_moves_to_the_front_of_its_tree(page_size: int, dtype: torch.dtype) -> None:
    @given(walks())
    @settings(max_examples=50)
    def law(given_walks: Walks) -> None:
        check_compaction(given_walks, page_size, dtype, GPU)

    law()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder = random_target(tmp_path_factory.mktemp("random"), 16)
    return CausalLM.load(folder, num_pages=64, page_size=4, device="cuda:0", backend="torch")


@given(st.data())
@settings(max_examples=50)
def test_a_step_comes_out_as_on_the_host(target: CausalLM, data: st.DataObject) -> None:
    """The forwards are the same; so must be what comes of them, log-probabilities but for the last bits."""
    tables: list[PageTable] = []
    step = data.draw(steps(target, tables))
    with torch.inference_mode():
        logits, hidden = target.forward_capturing(step.rows, step.layers)
    before = target.kv.data.clone()
    expected = HostTreeSampler(target, Extractor(target)).prepare(step)(logits, hidden)
    kv = target.kv.data.clone()
    target.kv.data.copy_(before)
    found = DeviceTreeSampler(target, Extractor(target)).prepare(step)(logits, hidden)
    for table in tables:
        table.release()
    assert found.accepted.keys() == expected.accepted.keys() and found.features == expected.features
    for session, made in expected.accepted.items():
        other = found.accepted[session]
        assert (other.path, other.bonus) == (made.path, made.bonus)
        assert [each.logprob for each in other.logprobs] == pytest.approx([each.logprob for each in made.logprobs])
    assert torch.equal(target.kv.data, kv)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever would make the host wait for the device raises, but for an event."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def copies(kind: str, work: Callable[[], object]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
    return sum(event.count for event in profiler.key_averages() if f"Memcpy {kind}" in event.key)


def wants_features(step: StepInput) -> bool:
    return any(each.recipe is not None and each.num_tokens for each in (*step.trees, *step.chunks))


def test_the_host_does_not_wait_for_what_is_copied_aside() -> None:
    """While the device spins before a copy aside, another copy comes and is read."""
    spun = torch.cuda.Stream()
    wide = torch.arange(64, device=GPU, dtype=torch.uint8)
    torch.cuda.synchronize()
    with torch.cuda.stream(spun):
        torch.cuda._sleep(2_000_000_000)  # pyright: ignore[reportPrivateUsage] (about a second)
        features = to_host([wide], aside=True)
        slept = spun.record_event()
    (small,) = to_host([wide[:4].contiguous()]).arrays()
    assert small.tolist() == [0, 1, 2, 3] and not slept.query(), "the small copy did not wait for the other"
    (found,) = features.arrays()
    assert slept.query() and found.tolist() == list(range(64))


@given(st.data())
@settings(max_examples=10)
def test_a_step_copies_to_the_host_once_and_features_aside_and_waits_for_nothing_else(
    target: CausalLM, data: st.DataObject
) -> None:
    assert isinstance(tree_sampler_for(target, Extractor(target)), DeviceTreeSampler)
    clock, tables = SystemClock(), list[PageTable]()
    runner = TargetRunner(target, Paced(CostCurve(), clock), None, clock)
    step = data.draw(steps(target, tables).filter(lambda step: bool(step.trees)))
    runner.run(step)  # what is compiled or made once
    with no_waiting():
        output = runner.run(step)
    assert not output.failed and output.forward_s > 0
    assert copies("DtoH", lambda: runner.run(step)) == 1 + wants_features(step)
    for table in tables:
        table.release()


def test_what_a_forward_does_not_read_goes_to_the_device_in_one_copy_and_does_not_wait_for_the_forward(
    target: CausalLM,
) -> None:
    tree_sampler, tables = DeviceTreeSampler(target, Extractor(target)), list[PageTable]()
    step = drafted(target, tables, 3)
    with torch.inference_mode():
        logits, hidden = target.forward_capturing(step.rows, step.layers)
    expected = tree_sampler.prepare(step)(logits, hidden)
    assert copies("HtoD", lambda: tree_sampler.prepare(step)(logits, hidden)) == 1
    buffer = StagingBuffer(GPU)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # pyright: ignore[reportPrivateUsage] (about a second, in the place of a forward)
    asleep = torch.cuda.current_stream(GPU).record_event()
    there = buffer.begin()(np.arange(5))
    buffer.send()
    copied = buffer._halves[0].sent  # pyright: ignore[reportPrivateUsage]
    assert copied is not None
    copied.synchronize()
    assert not asleep.query(), "it went while the device was busy"
    assert there.tolist() == [0, 1, 2, 3, 4]
    assert tree_sampler.prepare(step)(logits, hidden).accepted == expected.accepted
    for table in tables:
        table.release()
