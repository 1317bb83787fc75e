"""The numbers of `specsplit.sampling.noise.gumbel` within a kernel: functions for kernels to call, not for the host."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any, Final

import triton
import triton.language as tl

from specsplit import splitmix

EXACT: Final[dict[str, Any]] = {"enable_fp_fusion": False}
"""How kernels are launched: a product and a sum are rounded one after the other, as torch does."""
_GOLDEN: tl.constexpr = tl.constexpr(splitmix.GOLDEN)
_MIX_1: tl.constexpr = tl.constexpr(splitmix.MIX_1)
_MIX_2: tl.constexpr = tl.constexpr(splitmix.MIX_2)


@triton.jit
def draw(state):
    """Give the draw of splitmix64 from states uint64, as `splitmix.draw` does."""
    z = state + _GOLDEN
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return z ^ (z >> 31)


@triton.jit
def stream_key(stream, position):
    """Give `noise.stream_key` of a session and a position int64; `stream` int64 is the first draw from the session's seed."""
    return draw(stream.to(tl.uint64) + position.to(tl.uint64) * _GOLDEN)


@triton.jit
def gumbel(key, tokens):
    """Give standard Gumbel noise, float32 as `tokens`, of one position's key uint64.

    1 - u is exact, since u is a multiple of 2^-53 below 1. So log(1 - u) is what the reference has of log1p(-u): each is within a unit
    in the last place of float64. Rounding to float32 hides that unit, but for about one number in 2^28, which then differs by a unit of
    float32. Near zero the last bits may differ, by less than 1e-15.
    """
    odd = (draw(key + tokens.to(tl.uint64) * _GOLDEN) >> 11) | 1
    rest = odd.to(tl.float64) * -(2.0**-53) + 1.0
    return (-tl.log(-tl.log(rest))).to(tl.float32)
