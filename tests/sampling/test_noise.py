"""Noise is a function of (seed, position, token), and standard Gumbel."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.sampling import Noise, NoiseCache, gumbel, noise
from specsplit.sampling.noise import ENTRY_BYTES, stream_key
from tests.support.slow import slowly

CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**40)
EULER = 0.5772156649


def splitmix64(state: int, draws: int) -> int:
    """Draw number `draws` (from 1) of the published generator, step by step."""
    z = (state + draws * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def reference(seed: int, position: int, token: int) -> float:
    bits = splitmix64(stream_key(seed, position), token + 1)
    uniform = (bits >> 11 | 1) / 2**53
    return -math.log(-math.log1p(-uniform))


def test_the_generator_is_splitmix64() -> None:
    # first outputs for seed 1234567, from the reference implementation (prng.di.unimi.it/splitmix64.c)
    assert [splitmix64(1234567, draws) for draws in (1, 2)] == [6457827717110365317, 3203168211198807973]


@given(SEEDS, POSITIONS, st.integers(1, 50))
@settings(deadline=None)
def test_noise_equals_exact_integer_arithmetic(seed: int, position: int, vocab_size: int) -> None:
    noise = gumbel([seed], [position], vocab_size, CPU)
    assert noise.shape == (1, vocab_size)
    assert noise.dtype == torch.float32
    expected = torch.tensor([[reference(seed, position, token) for token in range(vocab_size)]])
    torch.testing.assert_close(noise, expected, rtol=1e-6, atol=1e-7)


def test_noise_never_changes_between_releases() -> None:
    """Seeds promise the same text: these numbers may not change."""
    noise = gumbel([0, 42], [0, 7], 4, CPU)
    expected = [[1.9016414, -1.2652520, 1.1223968, -0.8454131], [4.8283839, 2.3237610, -0.2262786, -0.1241516]]
    torch.testing.assert_close(noise, torch.tensor(expected), rtol=1e-6, atol=1e-6)


@given(st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=30), st.sampled_from([1, 40, 3000]), st.data())
@settings(deadline=None, max_examples=30)
def test_a_row_is_the_same_in_any_batch(keys: list[tuple[int, int]], vocab_size: int, data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(keys) - 1))
    batch = gumbel([seed for seed, _ in keys], [position for _, position in keys], vocab_size, CPU)
    alone = gumbel([keys[which][0]], [keys[which][1]], vocab_size, CPU)
    # equal but for the last bit: vectorised and scalar logarithms may round apart at the end of a block
    torch.testing.assert_close(batch[which], alone[0], rtol=2e-7, atol=2e-7)


@given(st.lists(st.tuples(SEEDS, POSITIONS), max_size=70), st.sampled_from([1, 40, 3000]))
@settings(deadline=None, max_examples=20)
def test_torch_makes_the_noise_where_there_is_no_kernel(keys: list[tuple[int, int]], vocab_size: int) -> None:
    seeds, positions = [seed for seed, _ in keys], [position for _, position in keys]
    expected = gumbel(seeds, positions, vocab_size, CPU)
    with patch.object(noise, "obstacle", lambda: "there is no gcc"):
        made = gumbel(seeds, positions, vocab_size, CPU)
    torch.testing.assert_close(made, expected, rtol=2e-7, atol=2e-7)


def test_noise_has_the_moments_of_a_standard_gumbel() -> None:
    noise = gumbel(range(1000), [3] * 1000, 1000, CPU).double()
    assert noise.mean().item() == pytest.approx(EULER, abs=0.005)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.01)
    assert noise.isfinite().all()


def test_noise_has_the_quantiles_of_a_standard_gumbel() -> None:
    noise = gumbel([5] * 1000, range(1000), 1000, CPU).flatten().double().sort().values
    uniform = torch.exp(-torch.exp(-noise))
    distance = (uniform - (torch.arange(10**6) + 0.5) / 10**6).abs().max().item()
    assert distance < 1.95 / math.sqrt(10**6)  # Kolmogorov-Smirnov at 0.1 %


@pytest.mark.parametrize("other", [(1, 100), (0, 101), (100, 0)])
def test_different_streams_are_uncorrelated(other: tuple[int, int]) -> None:
    rows = gumbel([0, other[0]], [100, other[1]], 100_000, CPU).double()
    assert abs(torch.corrcoef(rows)[0, 1].item()) < 0.015


def test_no_rows_give_no_noise() -> None:
    assert gumbel([], [], 7, CPU).shape == (0, 7)
    assert NoiseCache(1000)([], [], 7, CPU).shape == (0, 7)


FOUR_ROWS = 4 * (8 * 4 + ENTRY_BYTES)


class Counting:
    """How many rows a cache had to compute, told by wrapping what it calls."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(
        self, seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device
    ) -> torch.Tensor:
        self.rows += len(seeds)
        return gumbel(seeds, positions, vocab_size, device)


def test_a_cache_computes_a_row_once_while_it_has_room() -> None:
    counting = Counting()
    cache: Noise = NoiseCache(max_bytes=FOUR_ROWS, source=counting, ahead=0)
    assert torch.equal(cache([1, 1, 2], [5, 5, 5], 8, CPU), gumbel([1, 1, 2], [5, 5, 5], 8, CPU))
    assert counting.rows == 2
    assert torch.equal(cache([2, 1, 1], [5, 6, 5], 8, CPU), gumbel([2, 1, 1], [5, 6, 5], 8, CPU))
    assert counting.rows == 3
    cache([9, 9, 9], [1, 2, 3], 8, CPU)  # pushes out the two rows used longest ago
    cache([1], [5], 8, CPU)
    assert counting.rows == 6
    assert torch.equal(cache([2], [5], 8, CPU), gumbel([2], [5], 8, CPU))
    assert counting.rows == 7


def test_rows_of_a_step_that_are_more_than_there_is_room_for_are_made_once() -> None:
    counting = Counting()
    cache = NoiseCache(max_bytes=FOUR_ROWS, source=counting, ahead=0)
    seeds, positions = [1] * 6, range(6)
    cache.warm(seeds, positions, 8, CPU)
    assert torch.equal(cache(seeds, positions, 8, CPU), gumbel(seeds, positions, 8, CPU))
    assert counting.rows == 6, "and those that there is no room for are forgotten behind it"
    assert cache.has([1] * 4, range(2, 6)) and not cache.has([1], [0]) and not cache.has([1], [1])


def test_a_cache_too_small_for_a_batch_still_answers() -> None:
    cache = NoiseCache(max_bytes=1)
    assert torch.equal(cache([1, 2], [3, 4], 9, CPU), gumbel([1, 2], [3, 4], 9, CPU))


def test_a_cache_starts_again_for_another_vocabulary() -> None:
    cache = NoiseCache(max_bytes=10_000)
    cache([1], [2], 9, CPU)
    assert torch.equal(cache([1], [2], 12, CPU), gumbel([1], [2], 12, CPU))


def test_rows_of_the_positions_behind_come_along_as_far_as_a_block_and_the_limit_go() -> None:
    counting = Counting()
    cache = NoiseCache(10**6, source=counting, ahead=6)
    assert not cache.has([1, 2], [5, 9])
    cache.warm([1, 2, 1], [5, 9, 6], 8, CPU)
    assert counting.rows == 5, "room for three more is room for one of each session"
    assert cache.has([1, 1, 1, 2, 2], [5, 6, 7, 9, 10]) and not cache.has([1], [8])
    assert torch.equal(cache([1, 2], [7, 10], 8, CPU), gumbel([1, 2], [7, 10], 8, CPU))
    assert counting.rows == 5
    cache.warm([1], [8], 8, CPU)
    assert counting.rows == 11
    wide = Counting()
    NoiseCache(10**9, source=wide, ahead=6).warm([1], [5], 20_000, CPU)
    assert wide.rows == 1, "two would not fit into a block"


def test_rows_that_are_there_are_not_made_again_in_advance() -> None:
    counting = Counting()
    cache = NoiseCache(10**6, source=counting, ahead=4)
    cache.warm([3], [7], 8, CPU)
    cache.warm([3], [5], 8, CPU)
    assert counting.rows == 4 + 2, "5 and 6; 7 and 8 are there"


GROWTH = """
import sys, torch
from pathlib import Path
from specsplit.sampling import NoiseCache
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
torch.set_num_threads(1)
vocab_size, limit = int(sys.argv[1]), 16 * 2**20
NoiseCache(limit)([1], [1], vocab_size, torch.device("cpu"))
before, cache = resident(), NoiseCache(limit)
for position in range(0, 60_000, 16):
    cache.warm([7], [position], vocab_size, torch.device("cpu"))
print((resident() - before) / limit)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="what a process holds is read from Linux's /proc")
@pytest.mark.parametrize("vocab_size", slowly(8, 97, 2048))
def test_a_cache_holds_no_more_memory_than_it_may_with_small_vocabularies_too(vocab_size: int) -> None:
    done = subprocess.run([sys.executable, "-c", GROWTH, str(vocab_size)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5, "what rows took beside their numbers was 11 to 21 times the limit"


@given(
    st.integers(1, 12),
    st.integers(0, 4),
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=8))
    ),
)
def test_a_cache_of_any_size_gives_the_noise_whatever_was_asked_before(
    rows: int, ahead: int, calls: list[tuple[bool, bool, list[tuple[int, int]]]]
) -> None:
    cache = NoiseCache(rows * (5 * 4 + ENTRY_BYTES), ahead=ahead)
    for warmed, inference, keys in calls:
        seeds, positions = [seed for seed, _ in keys], [position for _, position in keys]
        with torch.inference_mode(inference):
            expected = gumbel(seeds, positions, 5, CPU)
            if warmed:
                cache.warm(seeds, positions, 5, CPU)
                assert cache.has(seeds, positions)
            assert torch.equal(cache(seeds, positions, 5, CPU), expected)
