"""What kernels have to add for the adapters of a layer, on whatever device they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from specsplit.model.adapters.folder import LowRank
from specsplit.model.adapters.linear import AdaptedLinear
from specsplit.model.adapters.shares import ROWS, Share, Shares

RANKS = st.lists(st.sampled_from([0, 1, 4, 16, 17, 64]), min_size=1, max_size=4).filter(any)
"""By adapter; 0: it adds nothing to the layer, to which one of them does."""
OWNERS = st.lists(st.integers(0, 4), min_size=1, max_size=3 * ROWS)
NEAR: Mapping[torch.dtype, float] = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far a sum may be off, as a share of the largest."""


def shares_by(owners: Sequence[int]) -> list[Share]:
    """Tokens by the adapters that they are for, 0 of the base, wherever they lie."""
    found = np.array(owners, dtype=np.int64)
    return [Share(number, np.flatnonzero(found == number)) for number in sorted({*owners} - {0})]


def layer_of(ranks: Sequence[int], into: int, out: int, like: Tensor) -> tuple[AdaptedLinear, Shares]:
    """A layer of this type and on this device, to which adapters of these ranks add."""
    drawn, shares = torch.Generator().manual_seed(sum(ranks) + into), Shares()
    inner = nn.Linear(into, out)
    inner.weight.data = torch.randn(out, into, generator=drawn) / into**0.5
    layer = AdaptedLinear("layer", inner.to(like.device, like.dtype), shares)
    for number, rank in enumerate(ranks, 1):
        if rank:
            down, up = (torch.randn(*shape, generator=drawn) for shape in ((rank, into), (out, rank)))
            layer.add(number, LowRank(down / into**0.5, up / rank**0.5))
    return layer, shares


def check_sums(
    ranks: Sequence[int],
    owners: Sequence[int],
    widths: tuple[int, int],
    like: Tensor,
    use: Callable[[AdaptedLinear, int], object] = AdaptedLinear.stack,
) -> None:
    """Kernels, which `use` has a layer take, add what is added one adapter after the other, to the rows that it is for, and to others
    nothing."""
    owners = [min(own, len(ranks)) for own in owners]
    layer, shares = layer_of(ranks, *widths, like)
    rows = torch.randn(1, len(owners), widths[0], generator=torch.Generator().manual_seed(1)).to(like)
    base = layer(rows)[0]
    shares.begin(len(owners), [Share(each.adapter, each.at, like.device) for each in shares_by(owners)])
    expected = layer(rows)[0]
    use(layer, len(ranks))
    found = layer(rows)[0]
    assert torch.equal(layer(rows)[0], found), "the same again"
    untouched = torch.tensor([own == 0 or not ranks[own - 1] for own in owners], device=like.device)
    assert torch.equal(found[untouched], base[untouched])
    torch.testing.assert_close(found, expected, rtol=0.0, atol=NEAR[like.dtype] * expected.abs().max().item())
    for row in range(0, len(owners), 7):
        shares.begin(1, [Share(owners[row], slice(0, 1), like.device)] if owners[row] else ())
        alone = layer(rows[:, row : row + 1])[0, 0] - base[row]
        near = NEAR[like.dtype] * expected.abs().max().item()
        torch.testing.assert_close(alone, found[row] - base[row], rtol=0.0, atol=near)
