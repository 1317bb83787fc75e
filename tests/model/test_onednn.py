"""Weights as oneDNN's kernels read them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specsplit.model.layers.cpu.onednn import OneDnnWeights, parts


def test_few_kernels_serve_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps one for every number of rows that it has met, and each takes half a megabyte."""
    torch.manual_seed(1)
    weight, rows, met = torch.randn(40, 24), torch.randn(600, 24), set[int]()
    packed = OneDnnWeights(weight, None)
    kernel = vars(packed)["_product"]

    def recorded(rows: Tensor, *rest: Any) -> Tensor:
        met.add(len(rows))
        return kernel(rows, *rest)

    monkeypatch.setattr(packed, "_product", recorded)
    with torch.inference_mode():
        for count in range(600):
            torch.testing.assert_close(packed.product(rows[:count]), rows[:count] @ weight.T, rtol=1e-5, atol=1e-4)
    assert len(met) <= 29 and max(met) == 512


@given(st.integers(0, 2_000), st.sampled_from([1, 4]))
def test_rows_are_multiplied_once_each_and_few_are_added(count: int, least: int) -> None:
    """To fewer rows than some processors multiply well others are added too."""
    split = parts(count, least)
    assert sum(rows for rows, _ in split) == count
    assert all(0 <= added <= 14 for _, added in split)
    assert all(rows + added >= least for rows, added in split if count)
    assert split == ((0, 0),) or all(rows for rows, _ in split)
