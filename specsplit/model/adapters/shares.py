"""Which tokens of a forward are whose: made once, and read by every adapted layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.native.low_rank import Tiles
from specsplit.model.pages.batch import Ints
from specsplit.model.tensors.transfer import on_device

ROWS: Final = 16
"""Tokens that a program of a GPU multiplies by the matrices of an adapter in one go: tensor cores multiply no fewer."""
_CPU: Final = torch.device("cpu")
Ints32: TypeAlias = NDArray[np.int32]
Tokens: TypeAlias = slice | Tensor
"""A run of tokens, or [n] indices of them."""


@dataclass(frozen=True, eq=False)
class Share:
    """Tokens that one adapter is for."""

    adapter: int
    """Its number, from 1."""
    at: slice | Ints
    """A run of tokens, or [n] indices of them."""
    device: torch.device = _CPU
    """Where the forward runs."""

    @cached_property
    def tokens(self) -> Tokens:
        """A run of tokens, or [n] indices of them on that device."""
        return self.at if isinstance(self.at, slice) else on_device(self.at, self.device)

    @property
    def indices(self) -> Ints:
        """[n] of the tokens."""
        return np.arange(self.at.start, self.at.stop) if isinstance(self.at, slice) else self.at


class Shares:
    """Shares of the forward under way; adapted layers hold on to it."""

    def __init__(self) -> None:
        self.tokens = 0
        """T of the forward."""
        self.adapted: Sequence[Share] = ()
        """One for each adapter that any row asks for; empty: the base computes all of them."""
        self._tiles: Tiles | None = None
        self._segments: Tensor | None = None

    def begin(self, tokens: int, adapted: Sequence[Share]) -> None:
        """A forward of so many tokens begins; with no shares one ends."""
        self.tokens, self.adapted = tokens, adapted
        self._tiles = self._segments = None

    def begin_captured(self, tokens: int, segments: Tensor) -> None:
        """A forward of so many tokens begins that is captured: whose they are is read from this memory whenever it is replayed."""
        self.begin(tokens, ())
        self._segments = segments

    @property
    def some(self) -> bool:
        """Whether any token may have an adapter."""
        return bool(self.adapted) or self._segments is not None

    def tiles(self, at: Tensor | None = None) -> Tiles | None:
        """All of them as kernels for a CPU read them, made for the first layer that asks, or of the tokens at these indices [n], by their
        places in it; None: no token has an adapter."""
        if not self.adapted:
            return None
        if at is not None:
            owners = np.zeros(self.tokens, dtype=np.int64)
            for share in self.adapted:
                owners[share.indices] = share.adapter
            chosen = owners[at.numpy()]
            return Tiles((share.adapter, np.flatnonzero(chosen == share.adapter)) for share in self.adapted)
        if self._tiles is None:
            self._tiles = Tiles((share.adapter, share.indices) for share in self.adapted)
        return self._tiles

    def segments(self, device: torch.device) -> Tensor:
        """All of them as kernels for a GPU read them, made for the first layer that asks: int32 [n, 1 + ROWS], an adapter, and indices of
        tokens that it is for, with -1 behind the last."""
        if self._segments is None:
            self._segments = on_device(segments_of(self.adapted), device)
        return self._segments


def segments_of(shares: Sequence[Share]) -> Ints32:
    """Shares, at least one, as `Shares.segments` has them."""
    return np.concatenate([_segments(share.adapter, share.indices) for share in shares])


def _segments(adapter: int, tokens: Ints) -> Ints32:
    count = -(-len(tokens) // ROWS)
    made = np.full((count, 1 + ROWS), -1, dtype=np.int32)
    made[:, 0] = adapter
    padded = np.full(count * ROWS, -1, dtype=np.int32)
    padded[: len(tokens)] = tokens
    made[:, 1:] = padded.reshape(count, ROWS)
    return made


def shares_of(adapters: Sequence[int], starts: Ints, queries: Ints, device: torch.device) -> list[Share]:
    """Of rows [B] by their adapters (0: the base), where each begins among the tokens of the forward, and how many it has.

    Rows of an adapter that lie side by side are a run, which nothing has to be gathered for.
    """
    numbers = np.asarray(adapters)
    return [
        Share(number, _tokens(starts[own], queries[own]), device)
        for number in sorted(set(adapters) - {0})
        for own in (np.flatnonzero(numbers == number),)
    ]


def _tokens(starts: Ints, queries: Ints) -> slice | Ints:
    stops = starts + queries
    if bool((starts[1:] == stops[:-1]).all()):
        return slice(int(starts[0]), int(stops[-1]))
    ranges = [np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)]
    return np.concatenate(ranges)
