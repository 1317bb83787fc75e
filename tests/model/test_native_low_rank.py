"""What the kernel in C adds for adapters of low rank, held to float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.model.adapters.linear import AdaptedLinear
from specsplit.model.native import library
from specsplit.model.native.low_rank import MOST_RANK, ROWS, LowRankKernel, Tiles
from tests.support.low_rank import NEAR, OWNERS, RANKS, check_sums

pytestmark = pytest.mark.skipif(library.obstacle() is not None, reason=str(library.obstacle()))

EPSILON = torch.finfo(torch.float32).eps
WIDTHS = st.tuples(st.integers(1, 70), st.integers(1, 70))
MATRICES = st.lists(st.integers(0, MOST_RANK), min_size=1, max_size=4)
"""Ranks by adapter; 0: it adds nothing to this layer."""


@given(ranks=MATRICES, widths=WIDTHS, owners=st.lists(st.integers(0, 4), max_size=40), threads=st.integers(1, 3))
def test_each_row_has_what_its_adapter_adds_and_nothing_else(
    ranks: list[int], widths: tuple[int, int], owners: list[int], threads: int
) -> None:
    """Rows of an adapter are scattered, and fall into tiles; those without one keep their bits."""
    drawn, before = torch.Generator().manual_seed(sum(ranks)), torch.get_num_threads()
    (into, out), count = widths, len(ranks)
    pairs = {
        number: (torch.randn(rank, into, generator=drawn), torch.randn(out, rank, generator=drawn))
        for number, rank in enumerate(ranks, 1)
        if rank
    }
    owner = np.array([min(own, count) for own in owners], dtype=np.int64)
    rows, base = (torch.randn(len(owner), width, generator=drawn) for width in (into, out))
    tiles = Tiles((number, np.flatnonzero(owner == number)) for number in range(1, count + 1))
    sums = base.clone()
    try:
        torch.set_num_threads(threads)
        LowRankKernel(count, pairs, into, out).add(tiles, rows, sums)
    finally:
        torch.set_num_threads(before)
    for row, own in enumerate(owner.tolist()):
        if own not in pairs:
            assert torch.equal(sums[row], base[row])
            continue
        down, up = (each.double() for each in pairs[own])
        x = rows[row].double()
        sizes = base[row].double().abs() + up.abs() @ (down.abs() @ x.abs())
        wrong = (sums[row].double() - base[row].double() - up @ (down @ x)).abs()
        assert bool((wrong <= (into + len(down) + 2) * EPSILON * sizes).all())


@given(RANKS, OWNERS, st.sampled_from([*NEAR]))
@settings(deadline=None)
def test_a_layer_of_any_type_adds_what_it_adds_one_adapter_after_the_other(
    ranks: list[int], owners: list[int], dtype: torch.dtype
) -> None:
    check_sums(ranks, owners, (70, 33), torch.empty(0, dtype=dtype), AdaptedLinear.pack)


@given(count=st.integers(1, 3 * ROWS), rank=st.integers(1, 20))
def test_what_is_added_to_a_row_depends_on_no_other_row(count: int, rank: int) -> None:
    drawn = torch.Generator().manual_seed(rank)
    pair = torch.randn(rank, 37, generator=drawn), torch.randn(41, rank, generator=drawn)
    kernel, rows = LowRankKernel(1, {1: pair}, 37, 41), torch.randn(count, 37, generator=drawn)
    together, alone = torch.zeros(2, count, 41)
    kernel.add(Tiles([(1, np.arange(count))]), rows, together)
    for row in range(count):
        kernel.add(Tiles([(1, np.zeros(1, dtype=np.int64))]), rows[row : row + 1], alone[row : row + 1])
    assert torch.equal(together, alone)


@pytest.mark.parametrize(
    ("tiles", "rows", "sums"),
    [
        ([(2, [0])], torch.ones(2, 5), torch.zeros(2, 7)),
        ([(1, [2])], torch.ones(2, 5), torch.zeros(2, 7)),
        ([(1, [0])], torch.ones(2, 5), torch.zeros(7, 2).t()),
        ([(1, [0])], torch.ones(2, 4), torch.zeros(2, 7)),
        ([(1, [0])], torch.ones(2, 5).double(), torch.zeros(2, 7)),
    ],
    ids=["an adapter", "a row", "scattered sums", "a width", "a type"],
)
def test_what_does_not_fit_is_refused(
    tiles: list[tuple[int, list[int]]], rows: torch.Tensor, sums: torch.Tensor
) -> None:
    kernel = LowRankKernel(1, {1: (torch.ones(3, 5), torch.ones(7, 3))}, 5, 7)
    with pytest.raises(ValueError, match=r"do not fit|the kernel takes"):
        kernel.add(Tiles((number, np.array(own)) for number, own in tiles), rows, sums)


@pytest.mark.parametrize("up", [torch.ones(7, 2), torch.ones(6, 3)], ids=["rank", "width"])
def test_matrices_that_do_not_fit_are_refused(up: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="for a layer from 5 to 7"):
        LowRankKernel(1, {1: (torch.ones(3, 5), up)}, 5, 7)
