"""What stands between the matrix products of a decoder layer, in one kernel each: every number is read once and written once.

Imports triton: see `specsplit.sampling.kernels`. Numbers are rounded to the type of the layer wherever transformers' modules round them.

    T   tokens      W   width of a row      H, K   query heads, KV heads      D   width of a head
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsplit.model.attention.interface import Place
from specsplit.sampling.kernels import launching_on

WIDEST: Final = 32_768
"""Numbers of a row of a norm, at most: a program holds all of it."""
_BLOCK: Final = 1024
_UNFUSED: Final[dict[str, Any]] = {"enable_fp_fusion": False}
"""A product and a sum are rounded one after the other, as torch does."""


class HeadNorms(NamedTuple):
    """Norms of the heads of queries and of keys: their weights [D], and what is added to the mean square."""

    queries: Tensor
    keys: Tensor
    of_queries: float
    of_keys: float


def rms_norm(rows: Tensor, weight: Tensor, eps: float, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x^2) + eps) * weight of x = rows + added [..., W], or of rows -> that, and x."""
    rows = rows.contiguous()
    out, total = torch.empty_like(rows), rows if added is None else torch.empty_like(rows)
    width = rows.shape[-1]
    launch, count = _launch(_rms_norm), rows.numel() // width
    if count:
        with launching_on(rows.device):
            launch[(count,)](
                rows,
                rows if added is None else added.contiguous(),
                weight,
                out,
                total,
                eps,
                width,
                BLOCK=triton.next_power_of_2(width),
                ADDED=added is not None,
                num_warps=8 if width > _BLOCK else 4,
                **_UNFUSED,
            )
    return out, total


def gated(both: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2 W], gates first -> [..., W]"""
    width = both.shape[-1] // 2
    out = both.new_empty(*both.shape[:-1], width)
    launch, count = _launch(_gated), out.numel() // width
    if count:
        with launching_on(both.device):
            launch[count, triton.cdiv(width, _BLOCK)](both, out, width, BLOCK=_BLOCK, **_UNFUSED)
    return out


def rotate(
    projected: Tensor, cos: Tensor, sin: Tensor, heads: Sequence[int], place: Place, norms: HeadNorms | None
) -> Tensor:
    """Queries, keys and values side by side [T, (H + 2 K) D] -> rotated queries [T, H, D]; rotated keys and values go to their place.

    cos and sin [T, D]; heads: H and K. norms: of heads, before they are rotated.
    """
    tokens, (count, kv_count) = len(projected), heads
    width = projected.shape[1] // (count + 2 * kv_count)
    queries = projected.new_empty(tokens, count, width)
    none = HeadNorms(projected, projected, 0.0, 0.0)
    launch, of_heads = _launch(_rotate), none if norms is None else norms
    if tokens:
        with launching_on(projected.device):
            launch[tokens, count + 2 * kv_count](
                projected,
                cos,
                sin,
                queries,
                *place,
                place.keys.stride(0),
                place.values.stride(0),
                *of_heads,
                HEADS=count,
                KV_HEADS=kv_count,
                WIDTH=width,
                HALF=triton.next_power_of_2(width // 2),
                NORMED=norms is not None,
                num_warps=1,
                **_UNFUSED,
            )
    return queries


def _launch(kernel: Any) -> Any:
    """A kernel without types: triton has none for a launch."""
    return kernel


@triton.jit(do_not_specialize_on_alignment=["rows", "added", "weight", "out", "total"])
def _rms_norm(rows, added, weight, out, total, eps, width, BLOCK: tl.constexpr, ADDED: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * width, tl.arange(0, BLOCK)
    inside = at < width
    kind = rows.dtype.element_ty
    number = tl.load(rows + row + at, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        number += tl.load(added + row + at, mask=inside, other=0.0).to(tl.float32)
        number = number.to(kind).to(tl.float32)
        tl.store(total + row + at, number.to(kind), mask=inside)
    mean = tl.sum(number * number, 0) / width
    scaled = (number * tl.rsqrt(mean + eps)).to(kind).to(tl.float32)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, (scale * scaled).to(kind), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["both", "out"])
def _gated(both, out, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    kind = both.dtype.element_ty
    gate = tl.load(both + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    opened = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + row * width + at, (opened * up).to(kind), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["projected", "cos", "sin", "queries", "slots", "of_queries", "of_keys"])
def _rotate(
    projected,
    cos,
    sin,
    queries,
    keys,
    values,
    slots,
    key_stride,
    value_stride,
    of_queries,
    of_keys,
    query_eps,
    key_eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, HALF)
    inside = at < WIDTH // 2
    kind = projected.dtype.element_ty
    source = projected + (token * (HEADS + 2 * KV_HEADS) + head) * WIDTH + at
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + WIDTH // 2, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        if NORMED:
            scale, eps = of_queries, query_eps
            if head >= HEADS:
                scale, eps = of_keys, key_eps
            mean = (tl.sum(low * low, 0) + tl.sum(high * high, 0)) / WIDTH
            factor = tl.rsqrt(mean + eps)
            low = (low * factor).to(kind).to(tl.float32) * tl.load(scale + at, mask=inside, other=0.0).to(tl.float32)
            high = (high * factor).to(kind).to(tl.float32) * tl.load(
                scale + WIDTH // 2 + at, mask=inside, other=0.0
            ).to(tl.float32)
            low, high = low.to(kind).to(tl.float32), high.to(kind).to(tl.float32)
        turn = token * WIDTH + at
        turned = _product(low, cos + turn, inside, kind) - _product(high, sin + turn, inside, kind)
        high = _product(high, cos + turn + WIDTH // 2, inside, kind) + _product(
            low, sin + turn + WIDTH // 2, inside, kind
        )
        low = turned
    if head < HEADS:
        target = queries + (token * HEADS + head) * WIDTH + at
    else:
        slot = tl.load(slots + token)
        target = values + slot * value_stride + (head - HEADS - KV_HEADS) * WIDTH + at
        if head < HEADS + KV_HEADS:
            target = keys + slot * key_stride + (head - HEADS) * WIDTH + at
    tl.store(target, low.to(kind), mask=inside)
    tl.store(target + WIDTH // 2, high.to(kind), mask=inside)


@triton.jit
def _product(numbers, factors, inside, kind: tl.constexpr):
    return (numbers * tl.load(factors, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
