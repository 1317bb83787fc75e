"""How far apart results of float32 are, in units that no machine sets.

Kernels add the terms of a sum in an order of their own, which differs by processor, by version and by number of rows. A small sum of large
terms is then off by as much as a large one, so that errors are told in units in the last place (ulp) of the largest number of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

TIMES = 8
"""How much larger one error may be than that of another order of the same sums; on three kinds of processor it was 2.2 times at most."""
APART = 256
"""Ulp between two orders of the sums of some layers, 3e-5 of the largest. Each was off by 50 at most; a wrong mask makes thousands."""
APART_ONCE = 16
"""The same of one attention alone, 2e-6 of the largest."""


def ulps(found: Tensor, reference: Tensor) -> float:
    """The largest difference from `reference`, both [..., numbers], in ulp of float32 of the largest number in the reference's row."""
    assert found.shape == reference.shape
    infinite = reference.isinf()
    assert bool((found[infinite] == reference[infinite]).all()), "what is never said is at -inf in both"
    found, reference = found.double().masked_fill(infinite, 0), reference.double().masked_fill(infinite, 0)
    spacing = torch.finfo(torch.float32).eps * reference.abs().amax(dim=-1, keepdim=True)
    apart = (found - reference).abs()
    return (apart / spacing.where(spacing > 0, 1)).max().item() if apart.numel() else 0.0


def assert_as_exact(found: Tensor, other: Tensor, reference: Tensor) -> None:
    """Hold `found` to the error that `other`, the same by other means, has: both are float32, `reference` is the same in float64."""
    assert reference.dtype == torch.float64
    error, bound = ulps(found, reference), TIMES * max(1.0, ulps(other, reference))
    assert error <= bound, f"off by {error:.1f} ulp of the largest number of a row, expected {bound:.1f} at most"


def assert_same_sums(found: Tensor, other: Tensor, apart: float = APART) -> None:
    """Hold two float32 results to be the same numbers but for the order in which terms were added."""
    assert found.dtype == other.dtype == torch.float32
    error = ulps(found, other)
    assert error <= apart, f"{error:.1f} ulp of the largest number of a row apart, expected {apart} at most"
