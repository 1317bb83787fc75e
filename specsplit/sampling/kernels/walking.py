"""The walk down token trees along the target's picks, where the picks are.

n   tokens of all trees      B   trees      D   tokens of the longest path from a root to a leaf
"""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsplit.sampling.kernels.noise import EXACT
from specsplit.values.plan import MOST_DRAFT_TOKENS

_WIDTH: Final = triton.next_power_of_2(MOST_DRAFT_TOKENS)
"""Nodes that are looked at together: all of any tree, so that there is one kernel for all."""


class Walked(NamedTuple):
    """What was accepted, by tree."""

    paths: Tensor
    """int64 [B, D] indices into each tree of what was accepted, root first; 0 behind that."""
    lengths: Tensor
    """int64 [B] of the paths."""
    bonus: Tensor
    """int64 [B] the pick behind the last of the path; -1 behind a root without one."""


def walk(picked: Tensor, tokens: Tensor, parents: Tensor, starts: Tensor, deepest: int) -> Walked:
    """Walk down trees of up to `MOST_DRAFT_TOKENS` tokens, as `Draft.accept` does on the host.

    picked, tokens, parents int64 [n]: of every node of every tree the target's pick behind it (-1: none), its token, and the index of its
    parent within the tree. starts int64 [B + 1]: where trees begin, and n. deepest: D.
    """
    count = len(starts) - 1
    paths = torch.zeros(count, deepest, dtype=torch.int64, device=picked.device)
    lengths, bonus = torch.empty(2, count, dtype=torch.int64, device=picked.device)
    if not count:
        return Walked(paths, lengths, bonus)
    _walk[(count,)](picked, tokens, parents, starts, paths, lengths, bonus, deepest, WIDTH=_WIDTH, **EXACT)
    return Walked(paths, lengths, bonus)


@triton.jit(
    do_not_specialize=["deepest"], do_not_specialize_on_alignment=["tokens", "parents", "starts", "lengths", "bonus"]
)
def _walk(picked, tokens, parents, starts, paths, lengths, bonus, deepest, WIDTH: tl.constexpr):
    tree = tl.program_id(0)
    start = tl.load(starts + tree)
    node = tl.arange(0, WIDTH).to(tl.int64)
    inside = node < tl.load(starts + tree + 1) - start
    parent = tl.load(parents + start + node, mask=inside, other=-2)
    token = tl.load(tokens + start + node, mask=inside, other=-2)
    at = tl.full((), 0, tl.int64)
    length = tl.full((), 1, tl.int64)
    pick = tl.load(picked + start)
    below = tl.max(tl.where((parent == at) & (token == pick), node, -1), 0)
    while below >= 0:
        after = tl.load(picked + start + below)
        if after >= 0:
            tl.store(paths + tree * deepest + length, below)
            length += 1
            at = below
            pick = after
            below = tl.max(tl.where((parent == at) & (token == pick), node, -1), 0)
        else:
            below = tl.full((), -1, tl.int64)  # a node behind which there is no pick is the bonus itself
    tl.store(lengths + tree, length)
    tl.store(bonus + tree, pick)
