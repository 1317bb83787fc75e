"""Captured forwards of a model with adapters: whose tokens are whose lies in memory that stays where it is.

Every way to attend is captured twice: with adapters, and without, so that forwards in which no row has one do nothing for them.

    N   tiles of a bucket: with adapter 0, which adds nothing, behind those of a forward
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specsplit.model.adapters.shares import ROWS, segments_of, shares_of
from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.graphs import Bucket, Buckets, StaticAttention, Upload
from specsplit.model.pages.batch import Row


class AdaptedForm(NamedTuple):
    """One of the ways in which a forward is captured."""

    form: Any
    """How it attends."""
    adapted: bool
    """Whether its rows may have adapters."""


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedForward:
    """A captured forward whose rows may have adapters (a ForwardBatch)."""

    attention: ForwardBatch
    segments: Tensor
    """int32 [N, 1 + ROWS], see `Shares.segments`."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        """Raises RuntimeError: layers are given `attention`, by `Adapters.captured`; here they would do without what adapters add."""
        raise RuntimeError("layers attend by what `Adapters.captured` makes of an AdaptedForward, and not by itself")


class StaticAdapters:
    """How captured forwards attend (a StaticAttention), and which adapters their rows have."""

    def __init__(self, attention: StaticAttention, buckets: Buckets, count: int, device: torch.device) -> None:
        """`count`: of the adapters."""
        self.forms: Final = [AdaptedForm(form, adapted) for adapted in (False, True) for form in attention.forms]
        self.attention: Final = attention
        """Of forwards whose rows have no adapters."""
        self._count: Final = count
        most = max(self._tiles(bucket) for bucket in buckets)
        self._segments: Final = Upload(most * (1 + ROWS), torch.int32, device)

    def fitting(self, rows: Sequence[Row]) -> Collection[AdaptedForm]:
        """Raises ValueError for an adapter that is not there."""
        most = max(row.adapter for row in rows)
        if most > self._count:
            raise ValueError(f"a row with adapter {most} of {self._count}")
        return [AdaptedForm(form, most > 0) for form in self.attention.fitting(rows)]

    def forward(self, bucket: Bucket, form: AdaptedForm, write_slots: tuple[Tensor, Tensor]) -> ForwardBatch:
        planned = self.attention.forward(bucket, form.form, write_slots)
        if not form.adapted:
            return planned
        return AdaptedForward(planned, self._segments.memory[: self._words(bucket)].view(-1, 1 + ROWS))

    def plan(self, rows: Sequence[Row], bucket: Bucket, form: AdaptedForm, half: int) -> None:
        self.attention.plan(rows, bucket, form.form, half)
        if form.adapted:
            self._load(rows, bucket, half)

    def _load(self, rows: Sequence[Row], bucket: Bucket, half: int) -> None:
        numbers, queries = [row.adapter for row in rows], np.array([row.num_tokens for row in rows])
        host = self._segments.host(half)[: self._words(bucket)]
        tiles = host.reshape(-1, 1 + ROWS)
        tiles[:, 0], tiles[:, 1:] = 0, -1
        if shares := shares_of(numbers, queries.cumsum() - queries, queries, torch.device("cpu")):
            found = segments_of(shares)
            tiles[: len(found)] = found
        self._segments.send(half, len(host))

    def _words(self, bucket: Bucket) -> int:
        return self._tiles(bucket) * (1 + ROWS)

    def _tiles(self, bucket: Bucket) -> int:
        """Tiles of a forward at most: those that are full, and one of each adapter that is not."""
        return bucket.tokens // ROWS + min(self._count, bucket.rows)
