"""Products by the kernels in C, held to float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu

from specsplit.model.native import library
from specsplit.model.native.weights import GatedWeights, Weights

pytestmark = pytest.mark.skipif(library.obstacle() is not None, reason=str(library.obstacle()))


EPSILON = torch.finfo(torch.float32).eps


def assert_rounded(found: Tensor, exact: Tensor, terms: int, sizes: Tensor) -> None:
    """Hold `found` to what any order of so many terms may be off by, whose sizes add up to `sizes`."""
    assert found.shape == exact.shape
    assert bool(((found.double() - exact).abs() <= terms * EPSILON * sizes).all())


@given(
    rows=st.integers(0, 40),
    sizes=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    biased=st.booleans(),
    threads=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_products_are_rounded_and_nothing_else(
    rows: int, sizes: tuple[int, int], biased: bool, threads: int, seed: int
) -> None:
    """Any number of rows, which fall into tiles, and of outputs, whose last panel is seldom full."""
    torch.manual_seed(seed)
    (into, out), before = sizes, torch.get_num_threads()
    weight, bias, x = torch.randn(out, into), torch.randn(out) if biased else None, torch.randn(rows, into)
    try:
        torch.set_num_threads(threads)
        product = Weights(weight, bias).product(x)
    finally:
        torch.set_num_threads(before)
    added = torch.zeros(out) if bias is None else bias
    exact = x.double() @ weight.double().T + added
    assert_rounded(product, exact, into + 1, x.double().abs() @ weight.double().abs().T + added.abs())


@given(
    rows=st.integers(0, 20),
    sizes=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    scale=st.sampled_from([0.1, 3, 60]),
)
def test_gated_mlps_are_rounded_and_nothing_else(rows: int, sizes: tuple[int, int], scale: float) -> None:
    """Gates of all sizes: sigmoids near 0 and 1 too."""
    torch.manual_seed(rows)
    width, inside = sizes
    gate, up, down = torch.randn(inside, width), torch.randn(inside, width), torch.randn(width, inside)
    x = scale * torch.randn(rows, width)
    found = GatedWeights(Weights(gate, None), Weights(up, None), Weights(down, None)).product(x)
    gates, ups, downs, exactly = (each.double().T for each in (gate, up, down, x.T))
    exact = (silu(exactly @ gates) * (exactly @ ups)) @ downs
    sizes_added = ((exactly.abs() @ gates.abs()) * (exactly.abs() @ ups.abs())) @ downs.abs()
    assert_rounded(found, exact, 2 * width + inside + 8, sizes_added)


def test_infinities_and_nan_stay_in_their_rows() -> None:
    weight = Weights(torch.ones(5, 3), None)
    rows = torch.tensor([[1.0, 2, 3], [torch.nan, 0, 0], [torch.inf, 1, 1], [0, 0, 0]])
    product = weight.product(rows)
    assert product[0].eq(6).all() and product[1].isnan().all() and product[2].isinf().all() and product[3].eq(0).all()


@pytest.mark.parametrize(
    "rows", [torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, 4).to("meta"), torch.zeros(8, 1)]
)
def test_rows_of_another_type_or_width_are_refused(rows: Tensor) -> None:
    with pytest.raises(ValueError, match="the kernel takes 2 of 4 float32 on a CPU"):
        Weights(torch.zeros(3, 4), None).product(rows)


def test_rows_that_lie_apart_are_read_where_they_are() -> None:
    torch.manual_seed(2)
    weight, rows = torch.randn(7, 6), torch.randn(6, 5).T
    assert not rows.is_contiguous()
    torch.testing.assert_close(Weights(weight, None).product(rows), rows @ weight.T)


@given(st.integers(1, 70), st.integers(1, 20), st.data())
def test_rows_of_a_weight_are_read_back_as_they_were(out: int, into: int, data: st.DataObject) -> None:
    weight = torch.randn(out, into)
    indices = torch.tensor(data.draw(st.lists(st.integers(0, out - 1), max_size=9)), dtype=torch.long)
    assert torch.equal(Weights(weight, None).rows(indices), weight[indices])


@pytest.mark.parametrize("index", [-1, 5])
def test_a_row_that_a_weight_does_not_have_is_refused(index: int) -> None:
    """Its last panel is filled up with rows of zeros."""
    with pytest.raises(IndexError, match="of a weight of 5"):
        Weights(torch.ones(5, 3), None).rows(torch.tensor([0, index]))


def test_weights_of_an_mlp_that_do_not_fit_are_refused() -> None:
    wide, narrow = Weights(torch.ones(6, 4), None), Weights(torch.ones(5, 4), None)
    with pytest.raises(ValueError, match="do not fit"):
        GatedWeights(narrow, wide, Weights(torch.ones(4, 6), None)).product(torch.ones(1, 4))
