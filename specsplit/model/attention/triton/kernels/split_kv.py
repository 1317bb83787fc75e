"""The kernels: split-KV attention (flash decoding) over pages, and what puts the parts together.

A program attends with one tile of queries, which is some new tokens of one row and query heads that share one KV head, to one part of what
these tokens see; parts are merged by the logarithms of their sums (arXiv 2205.14135, section 3.1, and the "Flash-Decoding" of its authors).
Everything that differs between forwards lies on the device, in the words of a `Layout`, so that the grid and the arguments of a
captured launch hold for all of them.

    T   tokens       H   query heads      S   parts      V   width of values
    M   lines of a tile: BLOCK_Q tokens by GROUP_TILE heads       N   keys that are read at once
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from specsplit.model.attention.triton.layout import FIELDS, Field
from specsplit.model.attention.triton.tiles import MOST_PARTS

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
_INF: tl.constexpr = tl.constexpr(float("inf"))
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_MOST_PARTS: tl.constexpr = tl.constexpr(MOST_PARTS)


@triton.jit(
    do_not_specialize=["query_token", "query_head", "table_width", "tiles_at", "rows_at", "low_at", "span"],
    do_not_specialize_on_alignment=["sinks", "windows"],
)
def attend(
    out,
    parts,
    weights,
    query,
    query_token,
    query_head,
    keys,
    values,
    key_slot,
    value_slot,
    tables,
    table_width,
    windows,
    plan,
    tiles_at,
    rows_at,
    low_at,
    span,
    sinks,
    scale,
    softcap,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    VALUE_HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    BOUNDED: tl.constexpr,
    WINDOWED: tl.constexpr,
    GATHERED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SHARED: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FRONT: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid: tiles, KV heads times tiles of their query heads, parts.

    GATHERED: `tables` has one table for each row, in their order. Keys are read in two pieces, of FRONT numbers and, where there are
    more, of up to REST. SHARED: the first of them is the values. Without SPLIT `out` [T, H, V] is written; else `parts` [T, H, S, V]
    and `weights` [T, H, S], the base-2 logarithms of their sums.
    """
    row = tl.load(plan + tiles_at + 2 * tl.program_id(0))
    if row < 0:
        return
    first_token = tl.load(plan + tiles_at + 2 * tl.program_id(0) + 1)
    fields = plan + rows_at + row * _FIELDS
    start, stop_token = tl.load(fields + _START), tl.load(fields + _STOP)
    length, before = tl.load(fields + _LENGTH), tl.load(fields + _BEFORE)
    words = tl.load(fields + _WORDS)

    head_blocks: tl.constexpr = (GROUP + GROUP_TILE - 1) // GROUP_TILE
    kv_head = tl.program_id(1) // head_blocks
    line = tl.arange(0, BLOCK_M)
    token = first_token + line // GROUP_TILE
    in_group = (tl.program_id(1) % head_blocks) * GROUP_TILE + line % GROUP_TILE
    real = (line < BLOCK_Q * GROUP_TILE) & (token < stop_token) & (in_group < GROUP)
    head = kv_head * GROUP + in_group

    # Of what comes before the tail a token sees low <= i < high; in a row in order, which has no tail, that is all.
    high = tl.where(words == 0, before + token - start + 1, before)
    low = tl.full((BLOCK_M,), 0, tl.int32)
    first = tl.full((), 0, tl.int32)
    if BOUNDED:
        low = tl.load(plan + low_at + token, mask=real, other=2147483647)
        first = tl.minimum(tl.min(low, 0), length - 1)
    last_token = tl.minimum(first_token + BLOCK_Q, stop_token) - 1
    stop = tl.where(words == 0, before + last_token - start + 1, length)
    tail = tl.where(words == 0, stop, before)
    each = tl.cdiv(tl.cdiv(stop - first, tl.num_programs(2)), BLOCK_N) * BLOCK_N
    begin = first + tl.program_id(2) * each
    end = tl.minimum(begin + each, stop)

    front, value_dim = tl.arange(0, FRONT), tl.arange(0, BLOCK_V)
    query += token.to(tl.int64) * query_token + head * query_head
    q = tl.load(query[:, None] + front[None, :], mask=real[:, None] & (front < KEY_WIDTH)[None, :], other=0.0)
    q_rest = q
    if REST:
        rest = FRONT + tl.arange(0, REST)
        q_rest = tl.load(query[:, None] + rest[None, :], mask=real[:, None] & (rest < KEY_WIDTH)[None, :], other=0.0)
    keys += kv_head * KEY_WIDTH
    values += kv_head * VALUE_HEAD

    number = row if GATHERED else tl.load(fields + _TABLE)
    table = tables + number.to(tl.int64) * table_width
    held, own = tl.load(fields + _HELD), plan + tl.load(fields + _OWN)
    best = tl.full((BLOCK_M,), -_INF, tl.float32)
    total = tl.full((BLOCK_M,), 0.0, tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)

    for at in tl.range(begin, tl.minimum(end, tail), BLOCK_N, num_stages=STAGES):
        index = at + tl.arange(0, BLOCK_N)
        there = index < tl.minimum(end, tail)
        slot = _slots(index, there, table, held, own, windows, PAGE, WINDOWED)
        sees = there[None, :] & (index[None, :] < high[:, None])
        if BOUNDED:
            sees = sees & (index[None, :] >= low[:, None])
        best, total, acc = _step(
            q, q_rest, keys, values, key_slot, value_slot, slot, there, sees, best, total, acc, scale, softcap,
            KEY_WIDTH, VALUE_WIDTH, SOFTCAP, SHARED, FRONT, REST, BLOCK_V,
        )  # fmt: skip

    mask = plan + tl.load(fields + _MASK) + (span * (stop_token - start) + token - start) * words
    for at in tl.range(tl.maximum(begin, tail), end, BLOCK_N, num_stages=1):
        index = at + tl.arange(0, BLOCK_N)
        there = index < end
        slot = _slots(index, there, table, held, own, windows, PAGE, WINDOWED)
        bit = index - before
        word = tl.load(mask[:, None] + (bit >> 5)[None, :], mask=real[:, None] & there[None, :], other=0)
        sees = ((word >> (bit & 31)[None, :]) & 1) == 1
        # What nobody sees of a tail, behind a window for instance, may be no number, and 0 times that is none either.
        there = there & (tl.max(sees.to(tl.int32), 0) != 0)
        best, total, acc = _step(
            q, q_rest, keys, values, key_slot, value_slot, slot, there, sees, best, total, acc, scale, softcap,
            KEY_WIDTH, VALUE_WIDTH, SOFTCAP, SHARED, FRONT, REST, BLOCK_V,
        )  # fmt: skip

    place = token.to(tl.int64) * HEADS + head
    if SPLIT:
        some = total != 0  # or none that is a number, which is not passed over
        acc = acc / tl.where(some, total, 1.0)[:, None]
        place = place * tl.num_programs(2) + tl.program_id(2)
        tl.store(weights + place, tl.where(some, best + tl.log2(total), -_INF), mask=real)
        written = (real & some)[:, None] & (value_dim < VALUE_WIDTH)[None, :]
        tl.store(parts + place[:, None] * VALUE_WIDTH + value_dim[None, :], acc, mask=written)
    else:
        if SINKS:
            sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * _LOG2_E
            highest = tl.maximum(best, sink)
            total = total * tl.exp2(best - highest) + tl.exp2(sink - highest)
            acc = acc * tl.exp2(best - highest)[:, None]
        acc = acc / tl.where(real, total, 1.0)[:, None]
        written = real[:, None] & (value_dim < VALUE_WIDTH)[None, :]
        tl.store(out + place[:, None] * VALUE_WIDTH + value_dim[None, :], acc.to(out.dtype.element_ty), mask=written)


@triton.jit
def _slots(index, there, table, held, own, windows, PAGE: tl.constexpr, WINDOWED: tl.constexpr):
    """Where a layer keeps the tokens of a row with these local indices [N]: pages are in its table, the last ones in the row's own list."""
    number = index // PAGE
    page = tl.load(table + number, mask=there & (number < held), other=0)
    page += tl.load(own + number - held, mask=there & (number >= held), other=0)
    page = page.to(tl.int64)
    if WINDOWED:
        page = tl.load(windows + page, mask=there, other=0)
    return page * PAGE + index % PAGE


@triton.jit
def _step(
    q, q_rest, keys, values, key_slot, value_slot, slot, there, sees, best, total, acc, scale, softcap,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, SOFTCAP: tl.constexpr, SHARED: tl.constexpr,
    FRONT: tl.constexpr, REST: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Attend to the tokens in N slots besides what was attended to so far: `acc` [M, V] over `total` [M], relative to 2 ** `best` [M]."""
    front, value_dim = tl.arange(0, FRONT), tl.arange(0, BLOCK_V)
    key_at = keys + slot * key_slot
    key = tl.load(key_at[:, None] + front[None, :], mask=there[:, None] & (front < KEY_WIDTH)[None, :], other=0.0)
    key = key.to(q.dtype)
    scores = tl.dot(q, tl.trans(key), input_precision="ieee")
    if REST:
        rest = FRONT + tl.arange(0, REST)
        more = tl.load(key_at[:, None] + rest[None, :], mask=there[:, None] & (rest < KEY_WIDTH)[None, :], other=0.0)
        scores = tl.dot(q_rest, tl.trans(more.to(q.dtype)), scores, input_precision="ieee")
    scores = scores * scale
    if SOFTCAP:
        scores = softcap * (1.0 - 2.0 / (tl.exp(scores * (2.0 / softcap)) + 1.0))
    scores = tl.where(sees, scores * _LOG2_E, -_INF)
    highest = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(highest == -_INF, 0.0, highest)
    weight = tl.exp2(scores - base[:, None])
    fades = tl.exp2(best - base)
    total = total * fades + tl.sum(weight, 1)
    if SHARED:
        value = key
    else:
        value_at = (values + slot * value_slot)[:, None] + value_dim[None, :]
        value = tl.load(value_at, mask=there[:, None] & (value_dim < VALUE_WIDTH)[None, :], other=0.0).to(q.dtype)
    acc = tl.dot(weight.to(q.dtype), value, acc * fades[:, None], input_precision="ieee")
    return highest, total, acc


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["sinks", "weights"])
def merge(
    out,
    parts,
    weights,
    sinks,
    count,
    VALUE_WIDTH: tl.constexpr,
    SINKS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Put `count` parts together for one query: grid T, H."""
    head = tl.program_id(1)
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    part, dim = tl.arange(0, _MOST_PARTS), tl.arange(0, BLOCK_V)
    weight = tl.load(weights + place * count + part, mask=part < count, other=-_INF)
    best = tl.max(weight, 0)
    if SINKS:
        best = tl.maximum(best, tl.load(sinks + head).to(tl.float32) * _LOG2_E)
    share = tl.exp2(weight - best)
    total = tl.sum(share, 0)
    if SINKS:
        total += tl.exp2(tl.load(sinks + head).to(tl.float32) * _LOG2_E - best)
    at = (place * count + part)[:, None] * VALUE_WIDTH + dim[None, :]
    written = (weight > -_INF)[:, None] & (dim < VALUE_WIDTH)[None, :]
    summed = tl.sum(tl.load(parts + at, mask=written, other=0.0) * share[:, None], 0) / total
    tl.store(out + place * VALUE_WIDTH + dim, summed.to(out.dtype.element_ty), mask=dim < VALUE_WIDTH)
