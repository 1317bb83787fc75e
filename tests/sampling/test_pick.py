"""A pick is an exact sample of the restricted softmax, and depends on nothing but its own row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from specsplit.sampling import NoiseCache, perturb, pick, restrict
from specsplit.values import Sampling

DRAWS = 20_000
CHI_SQUARE_0_1_PERCENT = {3: 16.27, 5: 20.52, 15: 37.70}
"""Critical values by degrees of freedom."""


def chi_square(picked: Sequence[int], probabilities: torch.Tensor) -> tuple[float, int]:
    """The statistic over tokens of positive probability, and its degrees of freedom."""
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
    allowed = restrict(logits[None] / 0.8, [sampling])[0].double()
    statistic, freedom = chi_square(
        pick(logits.expand(DRAWS, -1), [sampling] * DRAWS, range(DRAWS)), allowed.softmax(0)
    )
    assert freedom == 5
    assert statistic < CHI_SQUARE_0_1_PERCENT[freedom]


def test_picks_at_neighbouring_positions_are_independent() -> None:
    logits = torch.zeros(DRAWS, 4)
    picked = pick(logits, [Sampling(temperature=1.0, seed=11)] * DRAWS, range(DRAWS))
    pairs = [4 * first + second for first, second in zip(picked[::2], picked[1::2], strict=True)]
    statistic, freedom = chi_square(pairs, torch.full((16,), 1 / 16, dtype=torch.float64))
    assert statistic < CHI_SQUARE_0_1_PERCENT[freedom]


def test_greedy_rows_are_their_logits() -> None:
    logits = torch.randn(3, 50)
    assert perturb(logits, [Sampling(), Sampling(seed=4), Sampling(top_k=5)], [1, 2, 3]) is logits
    assert pick(logits, [Sampling()] * 3, [1, 2, 3]) == logits.argmax(dim=1).tolist()


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
    picked = pick(logits.expand(DRAWS, -1), [Sampling(temperature=1e300, seed=1)] * DRAWS, range(DRAWS))
    statistic, freedom = chi_square(picked, torch.full((4,), 0.25, dtype=torch.float64))
    assert statistic < CHI_SQUARE_0_1_PERCENT[freedom]
