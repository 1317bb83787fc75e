"""What adapters of low rank add to the outputs of linear layers, in one call for all of them.

T   rows      I, O   numbers of a row that goes in, and that comes out      R   rank of an adapter
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.native.library import library
from specsplit.model.native.weights import Weights, checked

MOST_RANK: Final = 64
"""The highest R; `MOST_RANK` of low_rank.h."""
ROWS: Final = 4
"""Rows of a tile; `ROWS` of low_rank.h."""


class _LowRank(ctypes.Structure):
    """`struct low_rank` of low_rank.h; one of zeros adds nothing."""

    _fields_ = (("down", ctypes.c_void_p), ("up", ctypes.c_void_p), ("rank", ctypes.c_int64))


class Tiles:
    """Rows of one forward by their adapters, as the kernels share them out: made once, and read by all layers."""

    def __init__(self, rows: Iterable[tuple[int, NDArray[np.int64]]]) -> None:
        """rows: numbers of adapters, and indices [n] of what each is for; none is for two of them."""
        self._tiles: Final = np.concatenate(
            [np.empty((0, 2 + ROWS), dtype=np.int64), *(_tiles(*each) for each in rows)]
        )
        self.count: Final = len(self._tiles)
        self.adapters: Final = int(self._tiles[:, 0].max(initial=0))
        """The highest number of an adapter."""
        self.rows: Final = int(self._tiles[:, 2:].max(initial=-1)) + 1
        """How many rows there are at least."""
        self.address: Final = self._tiles.ctypes.data

    def check(self, adapters: int, rows: int) -> None:
        """Raise ValueError for an adapter or a row beyond so many: the kernels do not look."""
        if self.adapters > adapters or self.rows > rows:
            raise ValueError(f"tiles do not fit: adapter {self.adapters} of {adapters}, row {self.rows} of {rows}")


def _tiles(adapter: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n, 2 + ROWS]: `struct tile` of low_rank.h"""
    starts = np.arange(0, len(rows), ROWS)
    tiles = np.empty((len(starts), 2 + ROWS), dtype=np.int64)
    tiles[:, 0], tiles[:, 1] = adapter, np.minimum(ROWS, len(rows) - starts)
    tiles[:, 2:] = np.resize(rows, (len(starts), ROWS))
    return tiles


class LowRankKernel:
    """The matrices of all adapters of one linear layer."""

    def __init__(self, count: int, matrices: Mapping[int, tuple[Tensor, Tensor]], into: int, out: int) -> None:
        """Adapters have numbers up to `count`; matrices: down [R, I] and up [O, R] of those that add something, float32, on the CPU.

        Raises LoadError where there are no kernels, and ValueError for what does not fit.
        """
        self._kernels: Final = library()
        self.into: Final = into
        self.out: Final = out
        self.count: Final = count
        self._table: Final = (_LowRank * (count + 1))()
        self._kept: Final = {number: _laid_out(down, up, into, out) for number, (down, up) in matrices.items()}
        for number, (down, up) in self._kept.items():
            self._table[number] = _LowRank(down.data_ptr(), up.struct.panels, len(down))
        self.address: Final = ctypes.addressof(self._table)

    def add(self, tiles: Tiles, rows: Tensor, sums: Tensor) -> None:
        """Add (x down^T) up^T to the rows of sums [T, O] that are in tiles, of rows x [T, I].

        Raises ValueError for another type or width, sums that are scattered, and an adapter or a row that is not there.
        """
        tokens = len(sums)
        rows = checked(rows, tokens, self.into)
        tiles.check(self.count, tokens)
        if checked(sums, tokens, self.out) is not sums:
            raise ValueError(f"sums do not fit: they lie {sums.stride()} apart")
        addresses = tiles.address, tiles.count, rows.data_ptr(), sums.data_ptr()
        self._kernels.add_low_rank(self.address, self.into, self.out, *addresses, torch.get_num_threads())


def _laid_out(down: Tensor, up: Tensor, into: int, out: int) -> tuple[Tensor, Weights]:
    rank = len(down)
    if not 1 <= rank <= MOST_RANK or down.shape != (rank, into) or up.shape != (out, rank):
        raise ValueError(f"matrices of {list(down.shape)} and {list(up.shape)} for a layer from {into} to {out}")
    return checked(down, rank, into), Weights(up, None)
