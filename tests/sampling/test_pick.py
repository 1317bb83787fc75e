"""A pick is an exact sample of the restricted softmax, and depends on nothing but its own row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit import sampling
from specsplit.sampling import Filters, NoiseCache, SamplingBatch, has_pick, restrict
from specsplit.values import MAX_TEMPERATURE, Sampling
from tests.support.sampling import perturb, pick

ROW = 40
DRAWS = 20_000
CHI_SQUARE_0_1_PERCENT = {3: 16.27, 5: 20.52, 15: 37.70}
"""Critical values by degrees of freedom."""


def chi_square(picked: Sequence[int | None], probabilities: torch.Tensor) -> tuple[float, int]:
    """The statistic over tokens of positive probability, and its degrees of freedom."""
    assert None not in picked
    counts = torch.bincount(torch.tensor(picked), minlength=len(probabilities)).double()
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * len(picked)
    return ((counts[possible] - expected) ** 2 / expected).sum().item(), int(possible.sum()) - 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_picks_are_samples_of_the_softmax(temperature: float, along: str) -> None:
    logits = torch.linspace(-1, 1, 16)[torch.randperm(16, generator=torch.Generator().manual_seed(1))]
    one = [9] * DRAWS
    seeds, positions = (one, range(DRAWS)) if along == "positions" else (range(DRAWS), one)
    samplings = [Sampling(temperature=temperature, seed=seed) for seed in seeds]
    statistic, freedom = chi_square(
        pick(logits.expand(DRAWS, -1), samplings, positions), (logits.double() / temperature).softmax(0)
    )
    assert statistic < CHI_SQUARE_0_1_PERCENT[freedom]


def test_picks_are_samples_of_the_restricted_softmax() -> None:
    logits = torch.linspace(-1, 1, 16)
    sampling = Sampling(temperature=0.8, top_k=8, top_p=0.85, min_p=0.05, seed=3)
    allowed = restrict(logits[None] / 0.8, Filters.of([sampling], 16, logits.device))[0].double()
    statistic, freedom = chi_square(
        pick(logits.expand(DRAWS, -1), [sampling] * DRAWS, range(DRAWS)), allowed.softmax(0)
    )
    assert freedom == 5
    assert statistic < CHI_SQUARE_0_1_PERCENT[freedom]


def test_picks_at_neighbouring_positions_are_independent() -> None:
    logits = torch.zeros(DRAWS, 4)
    picked = pick(logits, [Sampling(temperature=1.0, seed=11)] * DRAWS, range(DRAWS))
    pairs = [4 * (first or 0) + (second or 0) for first, second in zip(picked[::2], picked[1::2], strict=True)]
    statistic, freedom = chi_square(pairs, torch.full((16,), 1 / 16, dtype=torch.float64))
    assert statistic < CHI_SQUARE_0_1_PERCENT[freedom]


def test_greedy_rows_are_their_logits() -> None:
    logits = torch.randn(3, 50)
    assert perturb(logits, [Sampling(), Sampling(seed=4), Sampling(top_k=5)], [1, 2, 3]) is logits
    assert pick(logits, [Sampling()] * 3, [1, 2, 3]) == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_what_numpy_picks_on_a_cpu_is_what_torch_would(dtype: torch.dtype) -> None:
    rows = torch.randint(-3, 3, (64, 50), generator=torch.Generator().manual_seed(2)).to(dtype)  # full of ties
    rows[::9, 7], rows[::11, 9], rows[5] = torch.nan, torch.inf, -torch.inf
    best, at = rows.max(dim=-1)
    expected = [token if found else None for token, found in zip(at.tolist(), has_pick(best).tolist(), strict=True)]
    assert None in expected and sampling.likeliest_tokens(rows) == expected


def test_a_row_is_picked_the_same_in_any_company() -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(2))
    before = logits.clone()
    samplings = [
        Sampling(),
        Sampling(temperature=0.7, seed=1),
        Sampling(temperature=1.0, top_k=20, seed=2**64 - 1),
        Sampling(),
        Sampling(temperature=1.3, top_p=0.9, min_p=0.01, seed=1),
    ]
    positions = [4, 4, 9, 9, 4]
    together = perturb(logits, samplings, positions)
    assert torch.equal(logits, before)
    for row in range(5):
        alone = perturb(logits[row : row + 1], samplings[row : row + 1], positions[row : row + 1])
        assert torch.equal(together[row], alone[0])
    assert torch.equal(together, perturb(logits, samplings, positions, NoiseCache(10**6)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 1e-30, 1.7])
def test_rows_that_get_noise_and_nothing_else_are_picked_the_same_by_fewer_calls(
    dtype: torch.dtype, temperature: float
) -> None:
    logits = torch.cat(
        [torch.randn(6, ROW) * 30, torch.stack([row(nan=[3]), row(inf=[2]), row(impossible=range(ROW))])]
    )
    logits, seeds, positions = logits.to(dtype), [1, 1, 2] * 3, [5, 6, 6, 7, 8, 8, 9, 9, 1]
    batch = SamplingBatch([Sampling(temperature=temperature, seed=seed) for seed in (1, 2)], ROW, torch.device("cpu"))
    rows = batch.rows([seed - 1 for seed in seeds])
    noise = NoiseCache(10**6)
    expected = sampling.pick(logits, rows, positions, (), noise)
    before = logits.clone()
    divisors = sampling.divisors_of([temperature] * 9)
    rows_of_noise = noise(seeds, positions, ROW, torch.device("cpu"))
    assert sampling.pick_noisy(logits, divisors, rows_of_noise) == expected
    assert expected[-3:] == [None] * 3 and None not in expected[:-3]
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize(
    "more", [{"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"logit_bias": ((3, 1.0),)}, {"presence_penalty": 1.0}]
)
def test_rows_with_something_else_than_noise_are_no_such_rows(more: dict[str, Any]) -> None:
    of = Sampling(temperature=1.0, seed=1)
    assert of.noisy and not replace(of, **more).noisy and not Sampling().noisy


def test_greedy_rows_beside_noisy_ones_are_picked_by_their_logits() -> None:
    logits, cpu, noise = torch.randn(4, ROW), torch.device("cpu"), NoiseCache(10**6)
    samplings = [Sampling(), Sampling(temperature=0.7, seed=3), Sampling(), Sampling(temperature=1.2, seed=4)]
    expected = sampling.pick(logits, SamplingBatch(samplings, ROW, cpu).rows(range(4)), [5, 6, 7, 8], (), noise)
    added = noise([3, 4], [6, 8], ROW, cpu)
    divisors = sampling.divisors_of([each.temperature for each in samplings])
    assert sampling.pick_noisy(logits, divisors, added, [1, 3]) == expected


def test_nodes_of_one_session_at_one_depth_share_their_noise() -> None:
    logits = torch.randn(3, 300)
    sampling = Sampling(temperature=1.0, seed=5)
    noise = perturb(logits, [sampling] * 3, [8, 8, 9]) - logits
    torch.testing.assert_close(noise[0], noise[1], atol=1e-5, rtol=0)
    assert not torch.allclose(noise[0], noise[2], atol=0.1)


def test_a_cold_sample_is_the_argmax() -> None:
    logits = torch.randn(20, 300) * 30
    samplings = [Sampling(temperature=temperature, seed=1) for temperature in (1e-6, 1e-30, 1e-300, 5e-324)] * 5
    assert pick(logits, samplings, range(20)) == logits.argmax(dim=1).tolist()


def test_a_hot_sample_is_uniform() -> None:
    logits = torch.tensor([5.0, 0.0, -5.0, 1.0])
    picked = pick(logits.expand(DRAWS, -1), [Sampling(temperature=MAX_TEMPERATURE, seed=1)] * DRAWS, range(DRAWS))
    statistic, freedom = chi_square(picked, torch.full((4,), 0.25, dtype=torch.float64))
    assert statistic < CHI_SQUARE_0_1_PERCENT[freedom]


def row(scale: float = 1.0, **numbers: Sequence[int]) -> torch.Tensor:
    """Ordinary logits, but for these numbers at these tokens."""
    logits = torch.randn(ROW, generator=torch.Generator().manual_seed(4)) * scale
    for name, tokens in numbers.items():
        logits[list(tokens)] = {"impossible": -torch.inf, "masked": LOWEST, "nan": torch.nan, "inf": torch.inf}[name]
    return logits


LOWEST = torch.finfo(torch.float32).min
ROWS = {
    "finite": row(),
    "large": row(1e15),
    "some impossible": row(impossible=range(0, ROW, 3)),
    "some masked": row(masked=range(9)),
    "one possible": row(impossible=[token for token in range(ROW) if token != 17]),
    "none possible": row(impossible=range(ROW)),
    "one NaN": row(nan=[3]),
    "NaN and none possible": row(impossible=range(ROW), nan=[39]),
    "all NaN": row(nan=range(ROW)),
    "overflown": row(inf=[8]),
    "overflown twice": row(inf=[8, 30]),
    "overflown and NaN": row(inf=[8], nan=[9]),
}
WITH_PICK = {"finite", "large", "some impossible", "some masked", "one possible"}
ANY_SAMPLING = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 5e-324, 1e-30, 1e-6, 0.3, 1.0, 7.0, MAX_TEMPERATURE]),
    top_k=st.sampled_from([0, 1, 5, ROW - 1, ROW, 2**32 - 1]),
    top_p=st.sampled_from([5e-324, 0.01, 0.9, 1 - 2**-53, 1.0]),
    min_p=st.sampled_from([0.0, 5e-324, 0.2, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@given(st.lists(st.tuples(st.sampled_from(sorted(ROWS)), ANY_SAMPLING, st.integers(0, 2**40)), min_size=1, max_size=9))
@settings(deadline=None, max_examples=300)
def test_a_row_without_numbers_has_no_pick_and_every_other_row_a_possible_one(
    of_rows: list[tuple[str, Sampling, int]],
) -> None:
    names, samplings, positions = (list(column) for column in zip(*of_rows, strict=True))
    logits = torch.stack([ROWS[name] for name in names])
    picked = pick(logits, samplings, positions)
    for i, token in enumerate(picked):
        assert (token is not None) == (names[i] in WITH_PICK)
        assert token is None or logits[i, token].isfinite()
        assert [token] == pick(logits[i : i + 1], samplings[i : i + 1], positions[i : i + 1])


@pytest.mark.parametrize("name", sorted(ROWS))
def test_what_has_a_pick_is_told_from_the_largest_number_however_that_is_found(name: str) -> None:
    logits = ROWS[name]
    numbers = logits.tolist()
    expected = not any(math.isnan(number) for number in numbers) and math.isfinite(max(numbers))
    assert (name in WITH_PICK) == expected
    for best in (logits.max(), logits.amax(), logits.topk(3).values[0], logits[logits.argmax()]):
        assert has_pick(best).item() is expected


def test_one_finite_logit_is_picked_at_every_temperature() -> None:
    samplings = [Sampling(t, top_p=0.9, top_k=3, min_p=0.5) for t in (0.0, 1e-30, 1.0, MAX_TEMPERATURE)]
    assert pick(ROWS["one possible"].expand(4, -1), samplings, range(4)) == [17] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_picked_in_any_dtype_as_if_they_had_been_float32(dtype: torch.dtype) -> None:
    logits = (torch.randn(40, 3000, generator=torch.Generator().manual_seed(6)) * 3).to(dtype)  # narrow ones tie
    kinds = [Sampling(), Sampling(0.7, seed=1), Sampling(1.0, top_k=20, seed=2), Sampling(1.3, top_p=0.9, seed=3)]
    for samplings in (kinds * 10, kinds[:1] * 40, kinds[1:3] * 20):
        assert pick(logits, samplings, range(40)) == pick(logits.float(), samplings, range(40))


@given(st.lists(st.tuples(st.integers(0, 3), ANY_SAMPLING), min_size=1, max_size=12), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_rows_of_sessions_are_picked_as_rows_of_their_own(owned: list[tuple[int, Sampling]], seed: int) -> None:
    of_sessions = [sampling for _, sampling in owned]
    owners = [owner % len(of_sessions) for owner, _ in owned]
    logits = torch.randn(len(owners), 50, generator=torch.Generator().manual_seed(seed))
    rows = SamplingBatch(of_sessions, 50, logits.device).rows(owners)
    alone = [of_sessions[owner] for owner in owners]
    assert sampling.pick(logits, rows, range(len(owners))) == pick(logits, alone, range(len(owners)))
