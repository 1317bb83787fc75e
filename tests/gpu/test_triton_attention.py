"""The triton backend against torch on a GPU: ragged batches of chunks, trees and a drafter's nodes, eagerly and captured.

These tests have never run: they were written on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.model import Geometry, KVCache, PagePool, Row
from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.attention.softmax import SINKS
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.attention.triton.attention import TritonAttention, obstacle_on
from specsplit.model.graphs import Bucket, Buckets, CudaCapturer, StaticInputs
from specsplit.model.pages.geometry import ALL, Layer, Span
from tests.model.attended import levels, on_the_device
from tests.model.ragged import Ragged, ragged

GPU = torch.device("cuda", 0)
_PROBLEM = obstacle_on(GPU) if torch.cuda.is_available() else "torch finds no GPU"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_PROBLEM is not None, reason=f"triton's attention cannot be had: {_PROBLEM}"),
    pytest.mark.timeout(600),  # kernels are compiled
]
TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
LAYERS = {
    "GQA": Layer(16, 4, 128, 128),
    "heads of 64, sinks": Layer(16, 2, 64, 64, sinks=True),
    "wide heads, soft caps": Layer(8, 4, 256, 256, softcap=2.0),
    "uneven": Layer(8, 8, 192, 128),
    "latents": Layer(128, 1, 576, 512, values_in_keys=True),
}


def _near(kv: KVCache, page_size: int, batches: Ragged) -> None:
    """Both backends attend alike in all layers of `kv`."""
    backends = TritonAttention(kv, page_size), TorchAttention(kv, page_size)
    planned = [backend.plan(batches.batch(GPU)) for backend in backends]
    _alike(kv, planned, sum(row.num_tokens for row in batches.rows))


def _alike(kv: KVCache, planned: Sequence[ForwardBatch], count: int) -> None:
    """Two forwards of so many tokens attend alike in all layers of `kv`."""
    for number, layer in enumerate(kv.geometry.layers):
        shapes = (
            (layer.num_heads, layer.key_width),
            (layer.kv_heads, layer.key_width),
            (layer.kv_heads, layer.value_width),
        )
        query, key, value = (torch.randn(1, heads, count, width, device=GPU).to(kv.dtype) for heads, width in shapes)
        if layer.values_in_keys:
            value = key[..., : layer.value_width]
        extras = {SINKS: torch.randn(layer.num_heads, device=GPU).to(kv.dtype)}
        found, expected = (each.attend(number, query, key, value, 0.07, extras) for each in planned)
        tolerance = TOLERANCES[kv.dtype]
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("span", [ALL, Span(window=37), Span(chunk=90)], ids=str)
@pytest.mark.parametrize(
    ("layer", "page_size", "dtype"),
    [*((name, 16, torch.bfloat16) for name in LAYERS), ("GQA", 1, torch.float16)],  # each has kernels of its own
    ids=str,
)
def test_it_computes_what_torch_computes(page_size: int, layer: str, span: Span, dtype: torch.dtype) -> None:
    @settings(max_examples=5)
    @given(ragged(page_size, most_rows=8, most_tokens=700))
    def law(batches: Ragged) -> None:
        torch.manual_seed(20)
        described = LAYERS[layer]
        bounded = Layer(
            described.num_heads,
            described.kv_heads,
            described.key_width,
            described.value_width,
            span,
            described.softcap,
            described.sinks,
            described.values_in_keys,
        )
        kv = KVCache(Geometry((bounded, Layer(8, 2, 64, 64))), batches.pool.num_slots, dtype, GPU)
        for tensor in kv.tensors:
            tensor.normal_()
        _near(kv, page_size, batches)

    law()


@pytest.mark.parametrize("stored", [None, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_over_kv_of_any_type_nothing_is_read_that_no_row_sees(dtype: torch.dtype, stored: torch.dtype | None) -> None:
    @settings(max_examples=5)
    @given(ragged(16, most_rows=8, most_tokens=700))
    def law(batches: Ragged) -> None:
        torch.manual_seed(20)
        _near(batches.filled(4, 128, dtype, GPU, stored), 16, batches)

    law()


@pytest.mark.parametrize("span", [ALL, Span(window=7), Span(chunk=20)], ids=str)
def test_what_only_the_device_knows_is_attended_to_as_torch_does_it(span: Span) -> None:
    @settings(max_examples=20)
    @given(levels())
    def law(nodes: tuple[list[Row], PagePool]) -> None:
        torch.manual_seed(20)
        rows, pool = nodes
        kv = KVCache(
            Geometry((Layer(16, 4, 128, 128, span), Layer(8, 8, 192, 128))), pool.num_slots, torch.bfloat16, GPU
        )
        for tensor in kv.tensors:
            tensor.normal_()
        batch = on_the_device(rows, pool, GPU)
        planned = [backend(kv, 1).plan_on_device(batch) for backend in (TritonAttention, TorchAttention)]
        _alike(kv, planned, sum(row.num_tokens for row in rows))

    law()


@settings(max_examples=10)
@given(st.data())
def test_a_replay_attends_to_whatever_is_planned_later(data: st.DataObject) -> None:
    first = data.draw(ragged(16, most_rows=4, most_tokens=400))
    torch.manual_seed(20)
    kv = KVCache(Geometry((Layer(16, 4, 128, 128),)), first.pool.num_slots + 16, torch.float16, GPU)
    kv.data.normal_()
    buckets, bucket = Buckets(128, 8), Bucket(128, 8)
    static = TritonAttention(kv, 16).static(first.pool.tables, buckets)
    inputs = StaticInputs(first.pool.tables, first.pool.spare_page, 128, GPU)
    held = inputs.of(bucket)
    forward = static.forward(bucket, "any", (held.write_slots, held.window_write_slots))
    query, key, value = (torch.randn(1, heads, 128, 128, device=GPU).to(kv.dtype) for heads in (16, 4, 4))
    inputs.load(inputs.padded((), bucket), bucket, 0)
    static.plan(inputs.padded((), bucket), bucket, "any", 0)
    captured = CudaCapturer(GPU).capture(lambda: {"out": forward.attend(0, query, key, value, None, {})})
    padded = inputs.padded(first.rows, bucket)
    inputs.load(padded, bucket, 1)
    static.plan(padded, bucket, "any", 1)
    captured.replay()
    expected = TorchAttention(kv, 16).plan(Ragged(padded, first.pool).batch(GPU)).attend(0, query, key, value, None, {})
    torch.testing.assert_close(captured.results["out"], expected, atol=4e-3, rtol=4e-3)
