"""hash -> noise -> temperature -> filters -> argmax over rows of logits, each of which is read once and copied nowhere.

R   rows      V   vocabulary      C   blocks of tokens, of which every row has a program each
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsplit.sampling.kernels.noise import EXACT, gumbel, stream_key

_BLOCK: Final = 1024
"""Tokens of one program: a step of few rows still has programs for every part of a GPU."""
_INF: tl.constexpr = tl.constexpr(float("inf"))


def picks(logits: Tensor, temperatures: Tensor, streams: Tensor, positions: Tensor, bars: Tensor) -> Tensor:
    """Pick a token from each row of logits [R, V], int64 [R]; -1 for a row that has no pick, see `has_pick`.

    temperatures float32 [R], of which 0 is greedy. Of the others: streams int64 [R], see `stream_key`; positions int64 [R]; bars float32
    [R], below which logit / T is excluded. Of equals the first is picked.
    """
    rows, vocab_size = logits.shape
    blocks = triton.cdiv(vocab_size, _BLOCK)
    best = torch.empty(rows, blocks, device=logits.device)
    token = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    picked = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return picked
    _best_of_block[rows, blocks](
        logits,
        logits.stride(0),
        temperatures,
        streams,
        positions,
        bars,
        best,
        token,
        vocab_size,
        BLOCK=_BLOCK,
        **EXACT,
    )
    _best_of_row[(rows,)](best, token, picked, blocks, BLOCKS=triton.next_power_of_2(blocks), **EXACT)
    return picked


@triton.jit
def _best_of_block(logits, stride, temperatures, streams, positions, bars, bests, tokens, vocab, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + row * stride + token, mask=token < vocab, other=-_INF).to(tl.float32)
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        scaled = tl.div_rn(score, temperature)  # as IEEE 754 has it, which `/` is not on a GPU
        key = stream_key(tl.load(streams + row), tl.load(positions + row))
        score = tl.where(scaled < tl.load(bars + row), -_INF, scaled) + gumbel(key, token)
    score = tl.where(score != score, _INF, score)  # a row with a NaN has no pick, nor has one with infinity
    best = tl.max(score, 0)
    tl.store(bests + row * tl.num_programs(1) + block, best)
    tl.store(tokens + row * tl.num_programs(1) + block, tl.min(tl.where(score == best, token, vocab), 0))


@triton.jit
def _best_of_row(bests, tokens, picked, blocks, BLOCKS: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCKS)
    each = tl.load(bests + row * blocks + block, mask=block < blocks, other=-_INF)
    token = tl.load(tokens + row * blocks + block, mask=block < blocks, other=0)
    best = tl.max(each, 0)
    first = tl.min(tl.where((each == best) & (block < blocks), token, 2147483647), 0)
    has_pick = (best < _INF) & (best > -_INF)
    tl.store(picked + row, tl.where(has_pick, first, -1).to(tl.int64))
