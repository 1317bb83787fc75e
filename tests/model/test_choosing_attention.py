"""The backend of a GPU that nobody has named: the faster one, of those that can be set up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import LoadError
from specsplit.model.attention import backends
from specsplit.model.attention.choosing import ON_A_GPU, backend_over, fastest, planner_on_device
from specsplit.model.attention.interface import AttentionBackend
from specsplit.model.attention.measuring import step_seconds
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.lm.runner import ModelRunner
from specsplit.model.pages.geometry import Geometry, Layer, Span
from specsplit.model.pages.kv import KVCache
from tests.support.ticking import TickingClock

CPU = torch.device("cpu")
KV = KVCache(Geometry.uniform(1, 2, 2, 8), 4, torch.float32, CPU)


class First(TorchAttention):
    """Stands for FlashInfer."""


class Second(TorchAttention):
    """Stands for Triton."""


def refusing(*_: Any) -> AttentionBackend:
    raise LoadError("nvcc says no")


@pytest.fixture
def had(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say what becomes of each when it is set up, and what is in the way of it."""

    def say(first: Any = First, second: Any = Second, obstacles: tuple[str | None, str | None] = (None, None)) -> None:
        for name, made, why in zip(("flashinfer", "triton"), (first, second), obstacles, strict=True):
            monkeypatch.setitem(backends.BACKENDS, name, made)
            monkeypatch.setitem(backends.OBSTACLES, name, lambda _, why=why: why)

    return say


def chosen(first_s: float | None, second_s: float | None) -> str:
    def seconds(backend: AttentionBackend) -> float | None:
        return first_s if isinstance(backend, First) else second_s

    name, backend = fastest(KV, 4, ("flashinfer", "triton"), seconds)
    assert isinstance(backend, First if name == "flashinfer" else Second)
    return name


def test_the_faster_is_taken_and_the_log_has_both_times(
    had: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    had()
    assert chosen(1.0, 2.0) == "flashinfer" and chosen(2.0, 1.0) == "triton"
    assert caplog.messages[1].endswith(
        "takes triton: attention of a step takes flashinfer 2000.000 ms, triton 1000.000 ms"
    )
    assert chosen(2.0, None) == "flashinfer", "where one cannot be measured the first is"
    assert fastest(KV, 4, ("flashinfer", "triton"), None)[0] == "flashinfer"


def test_what_cannot_be_set_up_is_left_out_with_a_sentence(
    had: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    had(first=refusing)
    assert chosen(1.0, 2.0) == "triton"
    assert caplog.messages == ["attention = auto takes triton, and not flashinfer: nvcc says no"]
    had(obstacles=(None, "there is no gcc"))
    assert chosen(2.0, 1.0) == "flashinfer"


def test_where_nothing_can_be_had_torch_has_to_be_asked_for(had: Callable[..., None]) -> None:
    had(first=refusing, obstacles=(None, "there is no gcc"))
    wanted = (
        r"no attention kernels .*: flashinfer: nvcc says no; triton: there is no gcc; attention = torch does without"
    )
    with pytest.raises(LoadError, match=wanted):
        chosen(1.0, 2.0)
    assert backend_over("torch", KV, 4)[0] == "torch"


@given(st.sets(st.sampled_from(sorted(backends.BACKENDS))), st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=2))
def test_on_a_gpu_torch_is_never_taken_whatever_is_there(there: set[str], took: list[float]) -> None:
    made = {name: type(name, (TorchAttention,), {}) for name in backends.BACKENDS}
    times: dict[type[AttentionBackend], float] = {made[name]: each for name, each in zip(ON_A_GPU, took, strict=True)}
    kv = KVCache(Geometry.uniform(1, 2, 2, 8), 4, torch.float32, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv, "device", torch.device("cuda"))
        for name, backend in made.items():
            patch.setitem(backends.BACKENDS, name, backend)
            patch.setitem(backends.OBSTACLES, name, lambda _, name=name: None if name in there else "it is not there")
        had = [name for name in ON_A_GPU if name in there]
        if not had:
            with pytest.raises(LoadError, match="no attention kernels can be had for cuda"):
                backend_over("auto", kv, 4)
            return
        assert backend_over("auto", kv, 4)[0] == had[0]
        chosen, backend = backend_over("auto", kv, 4, lambda backend: times[type(backend)])
    assert type(backend) is made[chosen] and chosen == min(had, key=lambda name: times[made[name]])


def test_on_a_cpu_nothing_is_measured() -> None:
    def measured(_: AttentionBackend) -> float:
        raise AssertionError

    assert backend_over("auto", KV, 4, measured)[0] in ("native", "torch")


GEOMETRIES = [
    Geometry.uniform(2, 4, 2, 8),
    Geometry((Layer(4, 1, 8, 8, Span(window=12)), Layer(4, 2, 8, 6, sinks=True))),
]


@given(st.sampled_from(GEOMETRIES), st.integers(1, 400))
def test_measuring_takes_pages_for_a_moment_and_none_where_there_are_too_few(geometry: Geometry, pages: int) -> None:
    runner = ModelRunner(geometry, pages, 4, torch.float32, CPU, "torch")
    took = step_seconds(runner.backend, runner.kv, runner.pool, TickingClock())
    assert (took is None) == (pages // 8 * 4 < 8)
    assert took is None or took > 0
    assert runner.pool.free_pages == pages


class OnTheHost:
    """Stands for FlashInfer: it plans on the host alone."""

    def __init__(self, kv: KVCache, page_size: int) -> None:
        torch_attention = TorchAttention(kv, page_size)
        self.plan, self.plan_read, self.static = (
            torch_attention.plan, torch_attention.plan_read, torch_attention.static,
        )  # fmt: skip


def test_what_the_device_plans_triton_attends_to_beside_a_backend_that_plans_on_the_host(
    had: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    had()
    first, second, host = First(KV, 1), Second(KV, 1), OnTheHost(KV, 1)
    assert planner_on_device(first, KV, 1) is first and planner_on_device(second, KV, 1) is second
    assert isinstance(planner_on_device(host, KV, 1), Second)
    assert not caplog.messages
    for obstacles, made in ((None, None), refusing), ((None, "there is no gcc"), Second):
        had(second=made, obstacles=obstacles)
        assert planner_on_device(host, KV, 1) is None, "never by torch, which nobody asked for"
    levels = "levels of a tree are drawn one by one: only triton attends to what the device draws itself: "
    assert caplog.messages == [f"{levels}nvcc says no", f"{levels}there is no gcc"]
