"""Sinks, applied to what a kernel without them has computed.

A sink is a score more in the softmax of its head, of which nothing is attended to: it adds to what all weights are divided by. A kernel
that also gives the sum that it has divided by has said all that is needed, whatever its mask, its window and its soft cap were.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

_LN_2: Final = math.log(2)


def with_sinks(out: Tensor, weight: Tensor, sinks: Tensor) -> Tensor:
    """Attention `out` [T, H, D], changed in place, as it is with sinks [H] among the scores.

    `weight` [T, H], float32, is log2 of the sum that the weights of `out` were divided by; -inf where nothing is seen.
    """
    return out.mul_(torch.sigmoid(weight * _LN_2 - sinks.float()).unsqueeze(2))
