"""KV compaction where the accepted paths are: the host knows neither what was accepted nor where it moves.

Imports triton: see `specsplit.sampling.kernels`.

    B   trees      D   tokens of the longest path
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
from __future__ import annotations

from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor

from specsplit.model.pages.kv import KVCache

_BLOCK: Final = 1024
_UNFUSED: Final[dict[str, Any]] = {"enable_fp_fusion": False}
"""There is no arithmetic here; triton warns where nothing is said."""


def compact(
    kv: KVCache, tables: Tensor, page_size: int, table: Tensor, first: Tensor, paths: Tensor, lengths: Tensor
) -> None:
    """Move the KV of what was accepted of trees to the front of each; that of other nodes is lost.

    tables int32 [tables, pages], see `PageTables`. By tree: table int64 [B] its number, first int64 [B] local index of its root, paths
    int64 [B, D] and lengths int64 [B] as of `walk`.
    """
    if not len(table):
        return
    for raw in kv.raw:
        width = raw.stride(1)
        _compact[len(table), len(raw), triton.cdiv(width, _BLOCK)](
            raw,
            tables,
            tables.stride(0),
            table,
            first,
            paths,
            lengths,
            paths.shape[1],
            page_size,
            kv.num_slots,
            width,
            BLOCK=min(_BLOCK, triton.next_power_of_2(width)),
            **_UNFUSED,
        )


@triton.jit(do_not_specialize=["deepest", "pages"], do_not_specialize_on_alignment=["table", "first", "lengths"])
def _compact(data, tables, pages, table, first, paths, lengths, deepest, page_size, slots, width, BLOCK: tl.constexpr):
    tree, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    data += plane * slots * width + part
    tables += tl.load(table + tree) * pages
    root = tl.load(first + tree)
    # A path ascends, so every move is towards the front: what is still to be read is never overwritten.
    for place in range(1, tl.load(lengths + tree)):
        node = tl.load(paths + tree * deepest + place)
        if node != place:
            source = _slot(tables, root + node, page_size)
            target = _slot(tables, root + place, page_size)
            moved = tl.load(data + source * width, mask=part < width)
            tl.debug_barrier()
            tl.store(data + target * width, moved, mask=part < width)
            tl.debug_barrier()


@triton.jit
def _slot(tables, index, page_size):
    return tl.load(tables + index // page_size).to(tl.int64) * page_size + index % page_size
