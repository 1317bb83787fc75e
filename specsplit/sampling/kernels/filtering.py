"""The bars of top_k, top_p and min_p, found digit by digit: what `specsplit.sampling.filters` finds by sorting.

Each is the largest number t for which something grows no further as t falls: the count of logits >= t has come to top_k, or their mass to
top_p of all. float32 numbers, read as integers, are in order, so t is found four bits at a time, in a *round* for each four: 4 for
bfloat16, 8 for float32, of top_k first and then of top_p. In a round a program for every part of a row weighs what it has at the 16 numbers
that the digit leaves; all programs of the next round add up what those of the row have found, and all come to the same. So a step of one
row keeps a whole GPU busy, and reads a row out of the cache after the first time. Nothing is sorted, copied or asked on the host, and sums
are made in the same order every time.

    R   rows      F   of these, rows with a filter      V   vocabulary      P   parts of a row
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsplit.sampling.kernels.noise import EXACT

_BLOCK: Final = 512
_PART: Final = 4096
"""Tokens of one program."""
_UNUSED_BITS: Final = {torch.float32: 0, torch.float16: 12, torch.bfloat16: 16}
"""Low bits of a float32 that are 0 in all that a type can say, in whole digits of four."""
_WIDE: Final[dict[str, Any]] = {"num_warps": 8}
_INF: tl.constexpr = tl.constexpr(float("inf"))
_SIGN: tl.constexpr = tl.constexpr(2**31)
_ALL: tl.constexpr = tl.constexpr(2**32 - 1)
"""What turns every bit. `~` does so too, but for triton 3.6's interpreter, which refuses it of uint32."""


def bars(
    logits: Tensor,
    at: Tensor,
    temperatures: Tensor,
    counts: Tensor,
    masses: Tensor,
    margins: Tensor,
    ranks: int = 2,
) -> Tensor:
    """Find the lowest logit / T that filters let in, float32 [R], for rows `at` int64 [F] of logits [R, V]; -inf for the others.

    temperatures float32 [R]. By filtered row: counts int64 [F] top_k, V or more for all; masses float32 [F] top_p, 1 for all; margins
    float32 [F] the logarithm of min_p, -inf for none. ranks: of top_k and top_p a row has so many at most. Masses are summed in float32, so
    a token at which they come within 1e-6 of top_p may fall on either side; so it may in the reference.
    """
    (rows, vocab), filtered, unused = logits.shape, len(at), _UNUSED_BITS[logits.dtype]
    parts, rounds = triton.cdiv(vocab, _PART), ranks * (32 - unused) // 4
    found = torch.full((rows,), -torch.inf, device=logits.device)
    largest = torch.empty(filtered, parts, device=logits.device)
    weights = torch.empty(max(1, rounds), filtered, parts, 16, device=logits.device)
    keys = torch.empty(2, rounds + 1, filtered, dtype=torch.int32, device=logits.device)
    wanted = torch.empty(rounds + 1, filtered, device=logits.device)
    row = (logits, logits.stride(0), at)
    state = (largest, weights, *keys.unbind(), wanted, temperatures, counts, masses)
    sizes = {"BLOCK": min(_BLOCK, triton.next_power_of_2(vocab)), "PART": _PART}
    combined = {"PARTS": triton.next_power_of_2(parts), "DIGITS": (32 - unused) // 4}
    first, weigh, last = _kernels()
    first[filtered, parts](*row, largest, vocab, **sizes, **EXACT, **_WIDE)
    for number in range(rounds):
        weigh[filtered, parts](*row, *state, vocab, number, **sizes, **combined, **EXACT, **_WIDE)
    last[(filtered,)](at, *state, margins, found, vocab, rounds, parts, UNUSED=unused, **combined, **EXACT)
    return found


def _kernels() -> tuple[Any, Any, Any]:
    """The kernels in order, without types: triton has none for a launch."""
    return _largest_of_part, _weigh_part, _bar_of_row


@triton.jit(do_not_specialize_on_alignment=["at"])
def _largest_of_part(logits, stride, at, largest, vocab, BLOCK: tl.constexpr, PART: tl.constexpr):
    place, part = tl.program_id(0), tl.program_id(1)
    logits += tl.load(at + place) * stride
    found = tl.full((BLOCK,), -_INF, tl.float32)
    for start in range(part * PART, tl.minimum(vocab, (part + 1) * PART), BLOCK):
        found = tl.maximum(found, _block(logits, start, vocab, BLOCK))
    tl.store(largest + place * tl.num_programs(1) + part, tl.max(found, 0))


@triton.jit(
    do_not_specialize=["number"],
    do_not_specialize_on_alignment=["at", "leasts", "wanteds", "lowests", "temperatures", "counts", "masses"],
)
def _weigh_part(
    logits,
    stride,
    at,
    largest,
    weights,
    lowests,
    leasts,
    wanteds,
    temperatures,
    counts,
    masses,
    vocab,
    number,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    DIGITS: tl.constexpr,
):
    """Weigh the logits of a part at each of the keys [16] of a round and above: their mass, that of the likeliest being 1, or number."""
    place, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(at + place)
    count, mass = tl.load(counts + place), tl.load(masses + place)
    lowest, least, wanted = _found(
        place, number, count, mass, weights, lowests, leasts, wanteds, vocab, tl.num_programs(0), parts, PARTS, DIGITS
    )
    now = number * tl.num_programs(0) + place
    if part == 0:
        tl.store(lowests + now, lowest.to(tl.int32, bitcast=True))
        tl.store(leasts + now, least.to(tl.int32, bitcast=True))
        tl.store(wanteds + now, wanted)
    if _ranked(number, count, mass, vocab, DIGITS):
        by_mass = _by_mass(number, count, vocab, DIGITS)
        temperature, logits = tl.load(temperatures + row), logits + row * stride
        top = tl.div_rn(_best(largest, place, parts, PARTS), temperature)
        keys = tl.maximum(lowest + _digits(number, DIGITS), least)
        sums = tl.zeros((16, BLOCK), tl.float32)
        for start in range(part * PART, tl.minimum(vocab, (part + 1) * PART), BLOCK):
            logit = _block(logits, start, vocab, BLOCK)
            inside = start + tl.arange(0, BLOCK) < vocab
            each = inside.to(tl.float32)
            if by_mass:
                each = tl.exp(tl.div_rn(logit, temperature) - top)
            sums += tl.where(inside[None, :] & (_key(logit)[None, :] >= keys[:, None]), each[None, :], 0.0)
        tl.store(weights + (now * parts + part) * 16 + tl.arange(0, 16), tl.sum(sums, 1))


@triton.jit(
    do_not_specialize=["rounds"],
    do_not_specialize_on_alignment=[
        "at",
        "leasts",
        "wanteds",
        "lowests",
        "temperatures",
        "counts",
        "masses",
        "margins",
        "found",
    ],
)
def _bar_of_row(
    at,
    largest,
    weights,
    lowests,
    leasts,
    wanteds,
    temperatures,
    counts,
    masses,
    margins,
    found,
    vocab,
    rounds,
    parts,
    UNUSED: tl.constexpr,
    PARTS: tl.constexpr,
    DIGITS: tl.constexpr,
):
    place = tl.program_id(0)
    row = tl.load(at + place)
    count, mass, temperature = tl.load(counts + place), tl.load(masses + place), tl.load(temperatures + row)
    lowest, least, _ = _found(
        place, rounds, count, mass, weights, lowests, leasts, wanteds, vocab, tl.num_programs(0), parts, PARTS, DIGITS
    )
    bar = tl.div_rn(_best(largest, place, parts, PARTS), temperature) + tl.load(margins + place)
    if count < vocab:
        bar = tl.maximum(bar, tl.div_rn(_number(least, UNUSED), temperature))
    if mass < 1:
        bar = tl.maximum(bar, tl.div_rn(_number(lowest, UNUSED), temperature))
    tl.store(found + row, bar)


@triton.jit
def _found(
    place,
    number,
    count,
    mass,
    weights,
    lowests,
    leasts,
    wanteds,
    vocab,
    rows,
    parts,
    PARTS: tl.constexpr,
    DIGITS: tl.constexpr,
):
    """What the rounds before `number` have found of a row: the digits of a key so far, the key of top_k (0: all), and what is wanted.

    The key is the largest for which the logits of such keys and above, and of top_k's, are so many, or have such a part of the mass.
    """
    lowest = tl.full((), 0, tl.uint32)
    least = tl.full((), 0, tl.uint32)
    wanted = count.to(tl.float32)
    if number > 0:
        before = number - 1
        then = before * rows + place
        lowest = tl.load(lowests + then).to(tl.uint32, bitcast=True)
        least = tl.load(leasts + then).to(tl.uint32, bitcast=True)
        wanted = tl.load(wanteds + then)
        if _ranked(before, count, mass, vocab, DIGITS):
            by_mass = _by_mass(before, count, vocab, DIGITS)
            part = tl.arange(0, PARTS)[:, None]
            each = tl.load(
                weights + (then * parts + part) * 16 + tl.arange(0, 16)[None, :], mask=part < parts, other=0.0
            )
            of_keys = tl.sum(each, 0)
            if by_mass & (before % DIGITS == 0):
                # The mass of what top_k has let in is all there is. The likeliest token weighs 1, and is always in.
                wanted = tl.maximum(mass * tl.max(of_keys, 0), 0.5)
            enough = tl.sum((of_keys >= wanted).to(tl.int32), 0)
            lowest += tl.maximum(enough - 1, 0).to(tl.uint32) << (28 - 4 * (before % DIGITS)).to(tl.uint32)
            if (before % DIGITS == DIGITS - 1) & (by_mass == 0):
                least = lowest
                lowest = tl.full((), 0, tl.uint32)
    return lowest, least, wanted


@triton.jit
def _ranked(number, count, mass, vocab, DIGITS: tl.constexpr):
    """Whether a row has anything to find in a round."""
    return number // DIGITS < (count < vocab).to(tl.int32) + (mass < 1).to(tl.int32)


@triton.jit
def _by_mass(number, count, vocab, DIGITS: tl.constexpr):
    """Whether it is a digit of top_p's that a row finds in a round, and not of top_k's."""
    return (number >= DIGITS) | (count >= vocab)


@triton.jit
def _digits(number, DIGITS: tl.constexpr):
    """What the digit of a round may be, in its place: uint32 [16]."""
    return tl.arange(0, 16).to(tl.uint32) << (28 - 4 * (number % DIGITS)).to(tl.uint32)


@triton.jit
def _best(largest, place, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.max(tl.load(largest + place * parts + part, mask=part < parts, other=-_INF), 0)


@triton.jit
def _block(logits, start, vocab, BLOCK: tl.constexpr):
    token = start + tl.arange(0, BLOCK)
    return tl.load(logits + token, mask=token < vocab, other=-_INF).to(tl.float32)


@triton.jit
def _key(number):
    """float32 -> uint32 in the same order."""
    bits = number.to(tl.uint32, bitcast=True)
    return tl.where(bits >= _SIGN, bits ^ _ALL, bits | _SIGN)


@triton.jit
def _number(key, UNUSED: tl.constexpr):
    """The number of a key whose unused bits were left 0, which of a negative number's key are 1."""
    bits = tl.where(key >= _SIGN, key ^ _SIGN, (key | ((1 << UNUSED) - 1)) ^ _ALL)
    return bits.to(tl.float32, bitcast=True)
