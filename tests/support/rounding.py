"""How far apart results of float32 are, in units that no machine sets.

Kernels add the terms of a sum in an order of their own, which differs by processor, by version and by number of rows. A small sum of large
terms is then off by as much as a large one, so that errors are told in units in the last place (ulp) of the largest number of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

EPSILON = torch.finfo(torch.float32).eps
Rows = np.ndarray | Tensor | Sequence[float]

TIMES = 8
"""How much larger one error may be than that of another order of the same sums; on three kinds of processor it was 2.2 times at most."""
APART = 256
"""Ulp between two orders of the sums of some layers, 3e-5 of the largest. Each was off by 111 at most; a wrong mask makes thousands."""
APART_ONCE = 16
"""The same of one attention alone, 2e-6 of the largest."""


def spacing(rows: Rows, least: float = 0.0) -> Tensor:
    """Ulp of float32 of the largest number in each row of [..., numbers], but for infinity, or of `least` if all are smaller; [..., 1]."""
    numbers = torch.as_tensor(rows, dtype=torch.float64)
    return EPSILON * numbers.masked_fill(numbers.isinf(), 0).abs().amax(dim=-1, keepdim=True).clamp_min(least)


def ulps(found: Tensor, reference: Tensor, least: float = 0.0) -> float:
    """The largest difference from `reference`, both [..., numbers], in the `spacing` of its row."""
    assert found.shape == reference.shape
    if not found.numel():
        return 0.0
    infinite, one = reference.isinf(), spacing(reference, least)
    assert bool((found[infinite] == reference[infinite]).all()), "what is never said is at -inf in both"
    apart = (found.double() - reference.double()).masked_fill(infinite, 0).abs()
    return (apart / one.where(one > 0, 1)).max().item()


def assert_as_exact(found: Tensor, other: Tensor, reference: Tensor) -> None:
    """Hold `found` to the error that `other`, the same by other means, has: both are float32, `reference` is the same in float64."""
    assert reference.dtype == torch.float64
    error, bound = ulps(found, reference), TIMES * max(1.0, ulps(other, reference))
    assert error <= bound, f"off by {error:.1f} ulp of the largest number of a row, expected {bound:.1f} at most"


def assert_same_sums(found: Tensor, other: Tensor, apart: float = APART) -> None:
    """Hold two float32 results to be the same numbers but for the order in which terms were added."""
    assert found.dtype == other.dtype == torch.float32
    _assert_near(ulps(found, other), apart)


def assert_same_log_probabilities(found: Rows, other: Rows, tokens: int, apart: float = APART) -> None:
    """Hold the log-probabilities, [..., n], of some of so many tokens to be the same but for the order in which terms were added.

    They are logits less the logarithm of a sum over all tokens, so that those near 0 are rounded as what is as large as log(tokens).
    """
    ours, theirs = (torch.as_tensor(each, dtype=torch.float64) for each in (found, other))
    _assert_near(ulps(ours, theirs, math.log(tokens)), apart)


def _assert_near(error: float, apart: float) -> None:
    assert error <= apart, f"{error:.1f} ulp of the largest number of a row apart, expected {apart} at most"
