"""Ranks that tests fork compute in several threads at once, as a model's reader does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from specsplit.ranks.mesh import Mesh
from tests.support.ranks import run_ranks

THREADS = 8


def converted(_: Mesh, weights: torch.Tensor) -> int:
    """Large enough that torch would share each conversion out over its own threads."""
    together = Barrier(THREADS)

    def convert() -> torch.Tensor:
        together.wait()
        return weights.to(torch.float64)

    with ThreadPoolExecutor(THREADS) as threads:
        results = [threads.submit(convert) for _ in range(THREADS)]
        return sum(int(result.result().numel() == weights.numel()) for result in results)


def test_threads_that_begin_together_find_the_pool_of_their_rank() -> None:
    for _ in range(8):
        assert run_ranks(2, converted, torch.zeros(300_000)) == [THREADS, THREADS]
