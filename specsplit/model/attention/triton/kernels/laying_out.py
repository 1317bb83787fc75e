"""The kernel that lays out, on the device, what only the device knows: the words that `layout.lay_out` writes on the host.

B   rows       Q   new tokens of each       E   tokens of a tail, in words of 32 bits
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from specsplit.model.attention.triton.layout import FIELDS, Field

_FIELDS: tl.constexpr = tl.constexpr(FIELDS)
_START: tl.constexpr = tl.constexpr(Field.START)
_STOP: tl.constexpr = tl.constexpr(Field.STOP)
_LENGTH: tl.constexpr = tl.constexpr(Field.LENGTH)
_BEFORE: tl.constexpr = tl.constexpr(Field.BEFORE)
_TABLE: tl.constexpr = tl.constexpr(Field.TABLE)
_HELD: tl.constexpr = tl.constexpr(Field.HELD)
_OWN: tl.constexpr = tl.constexpr(Field.OWN)
_MASK: tl.constexpr = tl.constexpr(Field.MASK)
_WORDS: tl.constexpr = tl.constexpr(Field.WORDS)
_ENDLESS: tl.constexpr = tl.constexpr(1 << 30)


@triton.jit(do_not_specialize=["tail_tokens", "rows_at", "low_at", "more_at"])
def lay_out(
    words,
    lengths,
    tail,
    sees,
    positions,
    tail_tokens,
    rows_at,
    low_at,
    more_at,
    SIZES: tl.constexpr,
    BOUNDS: tl.constexpr,
):
    """Grid: B, Q. `lengths` [B], `tail` [B, E], `sees` [B, Q, E] and `positions` [B * Q] are those of a DeviceBatch.

    SIZES: tokens of the tiles, ascending. BOUNDS: of each span the window, less than 0 a chunk, 0 for all tokens.
    """
    row, query = tl.program_id(0), tl.program_id(1)
    rows, queries = tl.num_programs(0), tl.num_programs(1)
    token = row * queries + query
    width = tl.cdiv(tail_tokens, 32)
    length = tl.load(lengths + row).to(tl.int32)
    own = more_at + row * (tail_tokens + len(BOUNDS) * queries * width)
    mask = own + tail_tokens
    lane = tl.arange(0, 32)

    tiles = words
    for number in tl.static_range(len(SIZES)):
        each = tl.cdiv(queries, SIZES[number])
        if query % SIZES[number] == 0:
            tile = tiles + 2 * (row * each + query // SIZES[number])
            tl.store(tile, row)
            tl.store(tile + 1, token)
        tiles += 2 * rows * each

    if query == 0:
        fields = words + rows_at + row * _FIELDS
        tl.store(fields + _START, token)
        tl.store(fields + _STOP, token + queries)
        tl.store(fields + _LENGTH, length + tail_tokens)
        tl.store(fields + _BEFORE, length)
        tl.store(fields + _TABLE, row)
        tl.store(fields + _HELD, length)
        tl.store(fields + _OWN, own)
        tl.store(fields + _MASK, mask)
        tl.store(fields + _WORDS, width)
        for first in tl.range(0, tail_tokens, 32):
            there = first + lane < tail_tokens
            slot = tl.load(tail + row * tail_tokens + first + lane, mask=there, other=0)
            tl.store(words + own + first + lane, slot.to(tl.int32), mask=there)

    seen = sees + token * tail_tokens
    total = tl.full((), 0, tl.int32)
    for first in tl.range(0, tail_tokens, 32):
        total += tl.sum(tl.load(seen + first + lane, mask=first + lane < tail_tokens, other=0).to(tl.int32), 0)
    position = tl.load(positions + token).to(tl.int32)
    for number in tl.static_range(len(BOUNDS)):
        reach = tl.full((), _ENDLESS, tl.int32)
        if BOUNDS[number] > 0:
            reach = tl.full((), BOUNDS[number], tl.int32)
        if BOUNDS[number] < 0:
            reach = position % -BOUNDS[number] + 1
        # What comes before the tail comes before what is seen of it on the path, which is counted from its end.
        wanted = tl.minimum(tl.maximum(reach - total, 0), length)
        tl.store(words + low_at + number * rows * queries + token, length - wanted)
        before = tl.full((), 0, tl.int32)
        for first in tl.range(0, tail_tokens, 32):
            bit = tl.load(seen + first + lane, mask=first + lane < tail_tokens, other=0).to(tl.int32)
            onward = total - before - tl.cumsum(bit, 0) + bit
            shown = tl.where(onward <= reach, bit, 0)
            tl.store(words + mask + (number * queries + query) * width + first // 32, tl.sum(shown << lane, 0))
            before += tl.sum(bit, 0)
