"""Kernels do what the reference in torch does: run by triton's interpreter, on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings

from specsplit.sampling import gumbel
from specsplit.sampling.device import DeviceBatch
from specsplit.sampling.kernels import noise, obstacle
from specsplit.sampling.noise import signed
from specsplit.speculation import Draft
from specsplit.splitmix import draw
from specsplit.values import Sampling
from tests.support.kernels import (
    CPU,
    DTYPES,
    GPU,
    ODD,
    Rows,
    Walks,
    check_bars,
    check_picks,
    check_walk,
    interpreted,
    rows,
    walks,
)

pytestmark = interpreted
FILTERED = [Sampling(1.0, top_k=7), Sampling(0.6, top_p=0.8), Sampling(1.3, min_p=0.05)]


@given(rows(40) | rows(2) | rows(1500))
@settings(max_examples=20)
def test_picks_are_those_of_torch_whatever_the_sampling(given_rows: Rows) -> None:
    check_picks(given_rows, CPU)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_with_every_filter_is_picked_as_by_torch(dtype: torch.dtype) -> None:
    samplings = [*FILTERED, Sampling(0.8, top_k=20, top_p=0.9, min_p=0.01, seed=2**64 - 1)]
    logits = (torch.randn(4, 3000, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    check_picks(Rows(samplings, [0, 1, 2, 3], [5, 5, 2**40, 0], [[], [], [], []], logits), CPU)


@pytest.mark.parametrize("number", ODD.values(), ids=ODD)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=3), *FILTERED], ids=range(5))
def test_a_row_without_numbers_has_no_pick_and_changes_no_other(sampling: Sampling, number: float) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    logits[1, 7] = number
    logits[2] = number
    check_picks(Rows([sampling], [0, 0, 0], [1, 2, 3], [[], [], []], logits), CPU)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_equals_the_first_is_picked_in_whatever_block_it_is(dtype: torch.dtype) -> None:
    logits = torch.zeros(3, 2500, dtype=dtype)
    logits[1, 1024:] = logits[2, [1023, 1024, 2499]] = 1
    check_picks(Rows([Sampling()], [0, 0, 0], [1, 2, 3], [[], [], []], logits), CPU)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bars_let_in_what_sorting_lets_in(dtype: torch.dtype) -> None:
    logits = (torch.randn(8, 1100, generator=torch.Generator().manual_seed(4)) * 2).to(dtype)
    logits[:, 1000:] = -torch.inf
    both = Sampling(0.7, top_k=30, top_p=0.6), Sampling(0.7, top_k=30, top_p=0.99, min_p=0.2)
    whole = Sampling(1.0, top_p=5e-324), Sampling(1.0, top_k=2**32 - 1), Sampling(1e-30, top_p=0.9)
    check_bars(logits, [*FILTERED, *both, *whole], CPU)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bars_of_rows_that_many_programs_share_are_the_same_whoever_has_what(dtype: torch.dtype) -> None:
    """Three parts of a row, the last of them short; the likeliest tokens in one, in all, or tied in all."""
    logits = torch.randn(6, 9000, generator=torch.Generator().manual_seed(6)) * 2
    logits[1, 4096:] = -torch.inf
    logits[2, 8990:] += 20
    logits[3] = logits[3].round()
    logits[4, ::1000] = 9.5
    logits[5] = 0.25
    asked = [
        *FILTERED,
        Sampling(0.7, top_k=30, top_p=0.6),
        Sampling(0.7, top_k=5, top_p=0.999, min_p=1e-4),
        Sampling(1.0, top_k=8999),
        Sampling(1.0, top_p=0.999),
    ]
    for sampling in asked:
        check_bars(logits.to(dtype), [sampling] * len(logits), CPU)


@pytest.mark.parametrize("ranks", [0, 1, 2])
def test_no_more_kernels_are_launched_than_the_filters_of_a_step_need(ranks: int) -> None:
    filters = [{"min_p": 0.1}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.8}][: ranks + 1]
    samplings = [Sampling(1.0, **each) for each in filters]  # pyright: ignore[reportArgumentType]
    rows = DeviceBatch(samplings, 300, CPU).rows(range(len(samplings)))
    assert rows.columns.ranks == ranks
    logits = torch.randn(len(samplings), 300, generator=torch.Generator().manual_seed(7))
    check_picks(Rows(samplings, [*range(len(samplings))], [3] * len(samplings), [[]] * len(samplings), logits), CPU)


@triton.jit
def _noise(streams, positions, out, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803
    row, token = tl.program_id(0), tl.arange(0, BLOCK)
    key = noise.stream_key(tl.load(streams + row), tl.load(positions + row))
    tl.store(out + row * BLOCK + token, noise.gumbel(key, token))


def test_noise_in_a_kernel_is_the_shared_noise() -> None:
    seeds, positions = [0, 1, 2**63, 2**64 - 1], [0, 7, 2**40, 5]
    streams = torch.tensor([signed(draw(seed)) for seed in seeds])
    found = torch.empty(4, 2**15)
    _noise[(4,)](streams, torch.tensor(positions), found, BLOCK=2**15)  # pyright: ignore[reportArgumentType]
    expected = gumbel(seeds, positions, 2**15, CPU)
    torch.testing.assert_close(found, expected, rtol=2e-7, atol=1e-14)
    assert (
        found != expected
    ).sum() < 4  # logarithms may differ in the last bit of float64, which rounding shows once in 2^28


def test_kernels_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    assert obstacle(CPU) == "they need a GPU, and the device is cpu"
    monkeypatch.setenv("CC", "cc")
    assert obstacle(GPU) is None
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert obstacle(GPU) == "triton finds no C compiler; install gcc, or let CC name one"


@given(walks())
@settings(max_examples=60)
def test_trees_are_walked_as_on_the_host(given_walks: Walks) -> None:
    check_walk(given_walks, CPU)


def test_a_node_behind_which_there_is_no_pick_is_the_bonus_itself() -> None:
    draft = Draft((0, 1, 2), (4, 5, 6), (-1, 0, 1), (7, 8, 9), (0.0,) * 3)
    for picks in ([5, None, 1], [5, 6, None], [None, 6, 1], [5, 6, 3], [3, 3, 3]):
        check_walk([(draft, picks), (replace(draft, tokens=(4, 6, 5)), [6, 5, None])], CPU)
