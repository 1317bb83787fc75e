"""The matrices of all adapters of one linear layer as a kernel for a GPU reads them: one behind the other, whatever their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from specsplit.model.tensors.transfer import on_device


class Stack:
    """Adds what all of them add in one go."""

    def __init__(self, count: int, matrices: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """Adapters have numbers up to `count`; matrices: down [R, I] and up [O, R] of those that add something. Imports triton."""
        from specsplit.model.layers.kernels.low_rank import LowRanks, add_low_rank  # noqa: PLC0415

        ranks = [len(matrices[number][0]) if number in matrices else 0 for number in range(count + 1)]
        self._starts: Final = (0, *accumulate(ranks))
        pairs = [matrices[number] for number in sorted(matrices)]
        down, up = torch.cat([down for down, _ in pairs]), torch.cat([up.t() for _, up in pairs])
        starts = on_device(torch.tensor(self._starts, dtype=torch.int32), down.device)
        self._matrices: Final = LowRanks(down, up, starts, max(ranks))
        self._add: Final = add_low_rank

    def of(self, adapter: int) -> tuple[Tensor, Tensor]:
        """The two matrices of one adapter as they lie here: down [R, I] and up [O, R]."""
        own = slice(self._starts[adapter], self._starts[adapter + 1])
        return self._matrices.down[own], self._matrices.up[own].t()

    def add(self, tiles: Tensor, rows: Tensor, sums: Tensor) -> None:
        """Add it to rows of contiguous sums [T, O], in place, of rows x [T, I]. tiles: see `Shares.segments`."""
        self._add(self._matrices, tiles, rows.contiguous(), sums)
