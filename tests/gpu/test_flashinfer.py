"""The flashinfer backend against torch on a GPU: ragged batches of chunks, trees and a drafter's nodes.

First come those whose kernels `make gpu-kernels` has made, since a run has no minutes to compile others. These tests have never run:
they were written on a machine without a GPU.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.model import Geometry, KVCache, PagePool, PageTable, Row
from specsplit.model.attention.backends import obstacle_over
from specsplit.model.attention.choosing import ON_A_GPU, backend_over
from specsplit.model.attention.flashinfer.attention import FlashInferAttention, obstacle
from specsplit.model.attention.flashinfer.plan import WHOLE_MASK
from specsplit.model.attention.interface import AttentionBackend
from specsplit.model.attention.measuring import step_seconds
from specsplit.model.attention.softmax import SINKS
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.pages.geometry import Layer, Span
from tests.model.ragged import Ragged, ragged

GPU = torch.device("cuda", 0)
_PROBLEM = obstacle(GPU)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_PROBLEM is not None, reason=f"flashinfer cannot be had: {_PROBLEM}"),
    pytest.mark.timeout(600),  # kernels may have to be compiled
]


def test_auto_is_what_its_measurement_says() -> None:
    """It is FlashInfer's where nothing is measured, and else the faster of those that can be had."""
    pool = PagePool(8 * 4096 // 16, 16)
    kv = KVCache(Geometry.uniform(4, 32, 8, 128), pool.num_slots + 16, torch.bfloat16, GPU)
    took = dict[type[AttentionBackend], float]()

    def seconds(backend: AttentionBackend) -> float | None:
        measured = step_seconds(backend, kv, pool)
        assert measured is not None
        took[type(backend)] = measured
        return measured

    name, chosen = backend_over("auto", kv, 16, seconds)
    had = [each for each in ON_A_GPU if obstacle_over(each, kv) is None]
    assert len(took) == (len(had) if len(had) > 1 else 0) and name in had
    assert not took or type(chosen) is min(took, key=took.__getitem__)
    assert backend_over("auto", kv, 16)[0] == "flashinfer"


def test_a_plan_waits_for_nothing_on_the_device() -> None:
    """Whatever it copies it copies from pinned memory, and it reads nothing back."""
    pool = PagePool(64, 16)
    tables = [PageTable(pool) for _ in range(3)]
    for table in tables:
        table.reserve(300)
    forked = [-1, 0, 0, 1, 1, 3]
    rows = [Row.tree([7] * 6, forked, tables[0].upto(300)), Row.chunk([7] * 40, tables[1].upto(120))]
    batches = Ragged([*rows, Row.tree([7] * 6, forked, tables[2].upto(40))], pool)
    kv = batches.filled(4, 64, torch.bfloat16, GPU)
    backend, batch = FlashInferAttention(kv, 16, whole_mask=0), batches.batch(GPU)
    new = batches.tokens(4, 64, torch.bfloat16, GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        backend.plan(batch).attend(0, *new, None, {})
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_computes_what_torch_computes(page_size: int, group: int, head_dim: int, dtype: torch.dtype) -> None:
    _compare(page_size, group, head_dim, dtype)


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_over_kv_of_8_bits_it_computes_what_torch_computes(dtype: torch.dtype, stored: torch.dtype) -> None:
    _compare(16, 4, 128, dtype, stored)


def _compare(page_size: int, group: int, head_dim: int, dtype: torch.dtype, stored: torch.dtype | None = None) -> None:
    @settings(max_examples=5)
    @given(ragged(page_size, most_rows=8, most_tokens=700), st.sampled_from([0, WHOLE_MASK]))
    def law(batches: Ragged, whole_mask: int) -> None:
        torch.manual_seed(20)
        kv = batches.filled(group, head_dim, dtype, GPU, stored)
        new = batches.tokens(group, head_dim, dtype, GPU)
        assert obstacle_over("flashinfer", kv) is None
        backend = FlashInferAttention(kv, page_size, whole_mask=whole_mask)
        found = backend.plan(batches.batch(GPU)).attend(0, *new, None, {})
        expected = TorchAttention(kv, page_size).plan(batches.batch(GPU)).attend(0, *new, None, {})
        tolerance = 2e-2 if dtype == torch.bfloat16 else 4e-3
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)

    law()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(
    "span", [Span(window=1), Span(window=37), Span(window=300), Span(chunk=64), Span(chunk=90)], ids=str
)
@pytest.mark.parametrize("page_size", [1, 16])
def test_windows_chunks_soft_caps_and_sinks_are_computed_as_torch_does(
    page_size: int, span: Span, softcap: float | None, dtype: torch.dtype
) -> None:
    """In layers that differ, one of which sees all tokens: windows longer than a tile of the kernels, and shorter ones."""

    @settings(max_examples=5)
    @given(ragged(page_size, most_rows=8, most_tokens=700), st.sampled_from([0, WHOLE_MASK]))
    def law(batches: Ragged, whole_mask: int) -> None:
        torch.manual_seed(20)
        layers = Layer(16, 2, 128, 128, span, softcap), Layer(8, 8, 64, 64, span, softcap, True), Layer(8, 2, 128, 128)
        kv = KVCache(Geometry(layers), batches.pool.num_slots, dtype, GPU)
        for tensor in kv.tensors:
            tensor.normal_()
        assert obstacle_over("flashinfer", kv) is None
        mine = FlashInferAttention(kv, page_size, whole_mask=whole_mask).plan(batches.batch(GPU))
        theirs = TorchAttention(kv, page_size).plan(batches.batch(GPU))
        count, tolerance = sum(row.num_tokens for row in batches.rows), 2e-2 if dtype == torch.bfloat16 else 4e-3
        for number, layer in enumerate(layers):
            shapes = layer.num_heads, layer.kv_heads, layer.kv_heads
            query, key, value = (
                torch.randn(1, heads, count, layer.key_width, device=GPU).to(dtype) for heads in shapes
            )
            extras = {SINKS: torch.randn(layer.num_heads, device=GPU).to(dtype)}
            found = mine.attend(number, query, key, value, None, extras)
            expected = theirs.attend(number, query, key, value, None, extras)
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)

    law()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, 16, 128])
@pytest.mark.parametrize("page_size", [1, 16])
def test_latents_are_attended_to_as_torch_does(page_size: int, heads: int, dtype: torch.dtype) -> None:
    @settings(max_examples=5)
    @given(ragged(page_size, most_rows=8, most_tokens=700))
    def law(batches: Ragged) -> None:
        torch.manual_seed(20)
        kv = KVCache(Geometry((Layer(heads, 1, 576, 512, values_in_keys=True),)), batches.pool.num_slots, dtype, GPU)
        for tensor in kv.tensors:
            tensor.normal_()
        assert obstacle_over("flashinfer", kv) is None
        count, tolerance = sum(row.num_tokens for row in batches.rows), 2e-2 if dtype == torch.bfloat16 else 4e-3
        query, key = (torch.randn(1, each, count, 576, device=GPU).to(dtype) for each in (heads, 1))
        found, expected = (
            backend.plan(batches.batch(GPU)).attend(0, query, key, key[..., :512], 0.07, {})
            for backend in (FlashInferAttention(kv, page_size), TorchAttention(kv, page_size))
        )
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)

    law()
