"""What adapters of low rank add to the output of a linear layer, for all of a batch: rows that have one adapter are multiplied together.

The segmented products of Punica (SGMV, arXiv 2310.18547) and S-LoRA (arXiv 2311.03285), in two launches: one makes R numbers of each row,
in parts that are summed up by the other, which makes O numbers of them. Which rows are whose is read on the device, and grids go by shapes
alone, so that a launch may be captured. Sums are float32; what stands between the two products is rounded to the type of the layer, as
between two products of torch. What is added to a row depends on no other row.

Imports triton: see `specsplit.sampling.kernels`.

    T   rows      I, O   numbers of a row that goes in, and that comes out      R   rank of an adapter      N   tiles of rows
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsplit.sampling.kernels import launching_on

_LEAST: Final = 16
"""Numbers of each side of a product, at least: tensor cores multiply no fewer."""
_DEPTH: Final = 64
"""Numbers of rows that a program multiplies by in one go."""
_PART: Final = 512
"""Numbers of a row that one program sums up, at least."""
_PARTS: Final = 8
"""Programs that share a row at most: few rows would leave most of a GPU idle."""
_BLOCK: Final = 128
"""Numbers of a row that one program adds to."""


class LowRanks(NamedTuple):
    """The matrices of all adapters of one layer, one behind the other."""

    down: Tensor
    """[sum of R, I]"""
    up: Tensor
    """[sum of R, O]"""
    starts: Tensor
    """int32 [adapters + 2], by the number of an adapter where its rows of both begin, and where the last one's end. Adapter 0 has none."""
    most: int
    """The highest R."""


def add_low_rank(matrices: LowRanks, tiles: Tensor, rows: Tensor, sums: Tensor) -> None:
    """Add (x down^T) up to the rows of sums [T, O] that are in tiles, of rows x [T, I].

    tiles int32 [N, 1 + n]: the number of an adapter, and indices of rows that it is for, or -1. No row is in two of them; a tile of adapter
    0 adds nothing.
    """
    count, height = tiles.shape[0], tiles.shape[1] - 1
    into, out = rows.shape[1], sums.shape[1]
    if not count:
        return
    rank = max(_LEAST, triton.next_power_of_2(matrices.most))
    parts = min(_PARTS, triton.cdiv(into, _PART))
    share = triton.cdiv(triton.cdiv(into, parts), _DEPTH) * _DEPTH
    low = rows.new_empty(parts, count, height, rank, dtype=torch.float32)
    sizes: dict[str, Any] = {"ROWS": height, "RANK": rank}
    down, up = _launch(_low_rank_down), _launch(_low_rank_up)
    with launching_on(rows.device):
        down[count, parts](
            rows, matrices.down, matrices.starts, tiles, low, into, share, DEPTH=_DEPTH, enable_fp_fusion=True, **sizes
        )
        up[count, triton.cdiv(out, _BLOCK)](
            low,
            matrices.up,
            matrices.starts,
            tiles,
            sums,
            out,
            PARTS=parts,
            BLOCK=_BLOCK,
            enable_fp_fusion=True,
            **sizes,
        )


def _launch(kernel: Any) -> Any:
    """A kernel without types: triton has none for a launch."""
    return kernel


@triton.jit(do_not_specialize_on_alignment=["rows", "tiles", "starts"])
def _low_rank_down(
    rows, down, starts, tiles, low, into, share, ROWS: tl.constexpr, RANK: tl.constexpr, DEPTH: tl.constexpr
):
    tile, part = tl.program_id(0), tl.program_id(1)
    tiles += tile * (ROWS + 1)
    adapter = tl.load(tiles)
    first = tl.load(starts + adapter)
    rank = tl.load(starts + adapter + 1) - first
    if rank > 0:
        at, at_rank, at_depth = tl.arange(0, ROWS), tl.arange(0, RANK), tl.arange(0, DEPTH)
        row = tl.load(tiles + 1 + at).to(tl.int64)
        begin, end = part * share, tl.minimum((part + 1) * share, into)
        source = rows + row[:, None] * into + at_depth[None, :]
        weight = down + (first + at_rank).to(tl.int64)[None, :] * into + at_depth[:, None]
        acc = tl.zeros((ROWS, RANK), tl.float32)
        for place in range(begin, end, DEPTH):
            inside = place + at_depth < end
            x = tl.load(source + place, mask=(row >= 0)[:, None] & inside[None, :], other=0.0)
            a = tl.load(weight + place, mask=inside[:, None] & (at_rank < rank)[None, :], other=0.0)
            acc = tl.dot(x, a, acc, input_precision="ieee")
        target = low + (part * tl.num_programs(0) + tile).to(tl.int64) * ROWS * RANK
        tl.store(target + at[:, None] * RANK + at_rank[None, :], acc)


@triton.jit(do_not_specialize_on_alignment=["sums", "tiles", "starts"])
def _low_rank_up(
    low, up, starts, tiles, sums, out,
    ROWS: tl.constexpr, RANK: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tile, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tiles += tile * (ROWS + 1)
    adapter = tl.load(tiles)
    first = tl.load(starts + adapter)
    rank = tl.load(starts + adapter + 1) - first
    if rank > 0:
        at, at_rank = tl.arange(0, ROWS), tl.arange(0, RANK)
        row = tl.load(tiles + 1 + at).to(tl.int64)
        acc = tl.zeros((ROWS, RANK), tl.float32)
        for part in range(PARTS):
            source = low + (part * tl.num_programs(0) + tile).to(tl.int64) * ROWS * RANK
            acc += tl.load(source + at[:, None] * RANK + at_rank[None, :])
        kind = sums.dtype.element_ty
        inside = column < out
        b = tl.load(
            up + (first + at_rank).to(tl.int64)[:, None] * out + column[None, :],
            mask=(at_rank < rank)[:, None] & inside[None, :],
            other=0.0,
        )
        added = tl.dot(acc.to(kind), b, input_precision="ieee")
        there = (row >= 0)[:, None] & inside[None, :]
        target = sums + row[:, None] * out + column[None, :]
        before = tl.load(target, mask=there, other=0.0).to(tl.float32)
        tl.store(target, (before + added).to(kind), mask=there)
