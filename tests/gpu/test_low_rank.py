"""What kernels add for adapters of low rank on a GPU: what is added one product after the other, also from a captured graph.

These tests have never run: they were written on a machine without a GPU.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kernels import DTYPES, GPU, on_a_gpu
from tests.support.low_rank import NEAR, OWNERS, RANKS, check_sums, layer_of, shares_by

pytestmark = [*on_a_gpu, pytest.mark.timeout(300)]


@given(RANKS, OWNERS, st.sampled_from([(20, 33), (64, 128), (4096, 1024), (1500, 4096)]), st.sampled_from(DTYPES))
@settings(max_examples=100, deadline=None)
def test_each_row_has_what_its_adapter_adds_and_nothing_else(
    ranks: list[int], owners: list[int], widths: tuple[int, int], dtype: torch.dtype
) -> None:
    check_sums(ranks, owners, widths, torch.empty(0, dtype=dtype, device=GPU))


def test_a_captured_launch_goes_by_the_adapters_that_are_written_before_it_is_replayed() -> None:
    like = torch.empty(0, dtype=torch.bfloat16, device=GPU)
    layer, shares = layer_of([8, 16], 256, 128, like)
    layer.stack(2)
    rows = torch.randn(1, 40, 256, device=GPU).to(like)
    batches = [[1] * 20 + [2] * 20, [2] * 17 + [1] * 23]
    expected = list[torch.Tensor]()
    for owners in batches:
        shares.begin(40, shares_by(owners))
        expected.append(layer(rows).clone())
    shares.begin(40, shares_by(batches[0]))
    tiles = shares.segments(GPU)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(rows)
    for owners, wanted in zip(batches, expected, strict=True):
        shares.begin(40, shares_by(owners))
        tiles.copy_(shares.segments(GPU))
        graph.replay()
        near = NEAR[like.dtype] * wanted.abs().max().item()
        torch.testing.assert_close(captured, wanted, rtol=0.0, atol=near)
