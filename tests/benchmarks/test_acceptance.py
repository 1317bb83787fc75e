from __future__ import annotations

from itertools import permutations

import pytest
import torch

from benchmarks.acceptance.schemes import RecursiveRejection, Scheme, SharedNoise, TargetOnly, distribution
from benchmarks.acceptance.shapes import Budget, best_shape


@pytest.mark.parametrize("seed", range(5))
def test_recursive_rejection_over_all_children_yields_exactly_the_targets_distribution(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target, draft = torch.randn(4, generator=generator) * 2, torch.randn(4, generator=generator) * 2
    q = distribution(draft, 0.8).tolist()
    marginal = [0.0] * 4
    for order in permutations(range(4)):
        drawn, left = 1.0, 1.0
        for token in order:
            drawn *= q[token] / left
            left -= q[token]
        for token, chance in zip(order, RecursiveRejection().acceptance(target, draft, order, 0.8, 0, 0), strict=True):
            marginal[token] += drawn * chance
    assert marginal == pytest.approx(distribution(target, 0.8).tolist(), abs=1e-9)


@pytest.mark.parametrize("scheme", [SharedNoise(), TargetOnly(), RecursiveRejection()])
def test_at_temperature_zero_every_scheme_accepts_the_argmax_and_nothing_else(scheme: Scheme) -> None:
    target, draft = torch.tensor([0.0, 3.0, 1.0, 2.0]), torch.tensor([2.0, 1.5, 0.0, 1.0])
    children = scheme.scores(draft, 0.0, seed=1, position=1).topk(2).indices.tolist()
    assert children == [0, 1]
    assert scheme.acceptance(target, draft, children, 0.0, seed=1, position=1) == [0.0, 1.0]


def test_the_best_shape_holds_the_likeliest_nodes_and_keeps_earlier_siblings() -> None:
    shape = best_shape([0.6, 0.2, 0.05], Budget(topk=3, depth=3, nodes=5))
    assert [(s.parent, s.rank, s.depth) for s in shape] == [(-1, 0, 1), (0, 0, 2), (1, 0, 3), (-1, 1, 1), (0, 1, 2)]
