"""The bars of top_k, top_p and min_p, found digit by digit: what `specsplit.sampling.filters` finds by sorting.

Each is the largest number t for which something grows no further as t falls: the count of logits >= t has come to top_k, or their mass to
top_p of all. float32 numbers, read as integers, are in order, so t is found four bits at a time, with one pass over the row for each
four: 4 passes for bfloat16, 8 for float32. A row is one program, which finds its logits in the cache after the first pass. Nothing is
sorted, copied or asked on the host.

    R   rows      F   of these, rows with a filter      V   vocabulary
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsplit.sampling.kernels.noise import EXACT

_BLOCK: Final = 1024
_UNUSED_BITS: Final = {torch.float32: 0, torch.float16: 12, torch.bfloat16: 16}
"""Low bits of a float32 that are 0 in all that a type can say, in whole digits of four."""
_WIDE: Final[dict[str, Any]] = {"num_warps": 16}
_INF: tl.constexpr = tl.constexpr(float("inf"))
_SIGN: tl.constexpr = tl.constexpr(2**31)


def bars(logits: Tensor, at: Tensor, temperatures: Tensor, counts: Tensor, masses: Tensor, margins: Tensor) -> Tensor:
    """Find the lowest logit / T that filters let in, float32 [R], for rows `at` int64 [F] of logits [R, V]; -inf for the others.

    temperatures float32 [R]. By filtered row: counts int64 [F] top_k, V or more for all; masses float32 [F] top_p, 1 for all; margins
    float32 [F] the logarithm of min_p, -inf for none. Masses are summed in float32, so a token at which they come within 1e-6 of top_p may
    fall on either side; so it may in the reference.
    """
    found = torch.full((len(logits),), -torch.inf, device=logits.device)
    _bar_of_row[(len(at),)](
        logits,
        logits.stride(0),
        at,
        temperatures,
        counts,
        masses,
        margins,
        found,
        logits.shape[1],
        UNUSED=_UNUSED_BITS[logits.dtype],
        BLOCK=min(_BLOCK, triton.next_power_of_2(logits.shape[1])),
        **EXACT,
        **_WIDE,
    )
    return found


@triton.jit(do_not_specialize_on_alignment=["at", "temperatures", "counts", "masses", "margins", "found"])
def _bar_of_row(
    logits, stride, at, temperatures, counts, masses, margins, found, vocab, UNUSED: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0)
    row = tl.load(at + place)
    count, mass = tl.load(counts + place), tl.load(masses + place)
    temperature = tl.load(temperatures + row)
    logits += row * stride
    best = _largest(logits, vocab, BLOCK)
    top = tl.div_rn(best, temperature)
    bar = top + tl.load(margins + place)
    lowest = tl.full((), 0, tl.uint32)
    if count < vocab:
        lowest = _lowest(logits, vocab, lowest, best, temperature, count.to(tl.float32), False, UNUSED, BLOCK)
        bar = tl.maximum(bar, tl.div_rn(_number(lowest, UNUSED), temperature))
    if mass < 1:
        # The mass of what top_k has let in is all there is. The likeliest token weighs 1, and is always in.
        lowest = _lowest(logits, vocab, lowest, best, temperature, mass, True, UNUSED, BLOCK)
        bar = tl.maximum(bar, tl.div_rn(_number(lowest, UNUSED), temperature))
    tl.store(found + row, bar)


@triton.jit
def _lowest(
    logits, vocab, least, best, temperature, wanted, BY_MASS: tl.constexpr, UNUSED: tl.constexpr, BLOCK: tl.constexpr
):
    """Find the largest key such that the logits of such keys and above, and of `least`, are so many; or have such a part of the mass."""
    lowest = tl.full((), 0, tl.uint32)
    for digit in range((32 - UNUSED) // 4):
        keys = lowest + (tl.arange(0, 16).to(tl.uint32) << (28 - 4 * digit))
        weights = _weights(logits, vocab, tl.maximum(keys, least), best, temperature, BY_MASS, BLOCK)
        if BY_MASS and digit == 0:
            wanted = tl.maximum(wanted * tl.max(weights, 0), 0.5)
        enough = tl.sum((weights >= wanted).to(tl.int32), 0)
        lowest += tl.maximum(enough - 1, 0).to(tl.uint32) << (28 - 4 * digit)
    return lowest


@triton.jit
def _weights(logits, vocab, keys, best, temperature, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Weigh the logits of a row at each of the keys [16] and above: their mass, that of the likeliest being 1, or their number."""
    weights = tl.zeros((16, BLOCK), tl.float32)
    top = tl.div_rn(best, temperature)
    for start in range(0, vocab, BLOCK):
        logit = _block(logits, start, vocab, BLOCK)
        inside = start + tl.arange(0, BLOCK) < vocab
        each = tl.exp(tl.div_rn(logit, temperature) - top) if BY_MASS else inside.to(tl.float32)
        weights += tl.where(inside[None, :] & (_key(logit)[None, :] >= keys[:, None]), each[None, :], 0.0)
    return tl.sum(weights, 1)


@triton.jit
def _largest(logits, vocab, BLOCK: tl.constexpr):
    largest = tl.full((BLOCK,), -_INF, tl.float32)
    for start in range(0, vocab, BLOCK):
        largest = tl.maximum(largest, _block(logits, start, vocab, BLOCK))
    return tl.max(largest, 0)


@triton.jit
def _block(logits, start, vocab, BLOCK: tl.constexpr):
    token = start + tl.arange(0, BLOCK)
    return tl.load(logits + token, mask=token < vocab, other=-_INF).to(tl.float32)


@triton.jit
def _key(number):
    """float32 -> uint32 in the same order."""
    bits = number.to(tl.uint32, bitcast=True)
    return tl.where(bits >= _SIGN, ~bits, bits | _SIGN)


@triton.jit
def _number(key, UNUSED: tl.constexpr):
    """The number of a key whose unused bits were left 0, which of a negative number's key are 1."""
    bits = tl.where(key >= _SIGN, key ^ _SIGN, ~(key | ((1 << UNUSED) - 1)))
    return bits.to(tl.float32, bitcast=True)
