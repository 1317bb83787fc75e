"""How the rows of a forward are picked by kernels. The picks stay on the device.

S   sessions      R   rows of a forward      F   rows with a filter      P   biased or penalised rows
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.tensors.transfer import UploadArray, on_device
from specsplit.sampling.batch import COLDEST, SamplingBatch, SamplingRows
from specsplit.sampling.counts import TokenCounts
from specsplit.sampling.kernels.filtering import bars
from specsplit.sampling.kernels.picking import picks
from specsplit.sampling.noise import signed
from specsplit.sampling.pick import Paths, processed
from specsplit.splitmix import draw
from specsplit.values import Sampling

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
_ALL: Final = 2**62
"""More than any vocabulary has."""
_GREEDY: Final = Sampling()
"""What rows are picked by that nobody reads."""


class DeviceBatch:
    """How the sessions pick whose rows come in one forward, as `SamplingBatch`, but by kernels."""

    def __init__(
        self,
        samplings: Sequence[Sampling],
        vocab_size: int,
        device: torch.device,
        counts: Sequence[TokenCounts | None] = (),
    ) -> None:
        """`counts`: of every session that is penalised; to be left out only where none is."""
        self._device = device
        all_of = [*samplings, _GREEDY]
        self._numbers = np.array([_numbers(sampling) for sampling in all_of], dtype=np.float32)
        self._streams = np.array([signed(draw(sampling.seed)) for sampling in all_of])
        self._counts = np.array([sampling.top_k or _ALL for sampling in all_of])
        self._filtered = np.array([_filtered(sampling) for sampling in all_of])
        self._processed = np.array([_processed(sampling) for sampling in all_of])
        # A matrix of float32 is made of processed rows alone, so they are picked by themselves.
        self._batch = SamplingBatch(samplings, vocab_size, device, counts) if self._processed.any() else None

    def rows(self, owners: Sequence[int]) -> UnsentRows:
        """Index the rows of a forward, of which number r is of the session owners[r]."""
        of_rows = np.array(owners, dtype=np.int64)
        which = self._processed[of_rows].nonzero()[0]
        if self._batch is None or not len(which):
            return UnsentRows(self._columns(of_rows))
        of_which, others = of_rows[which], of_rows.copy()
        others[which] = -1
        sampling = self._batch.rows(of_which.tolist())
        own = ProcessedRows(which.tolist(), on_device(which, self._device), sampling)
        return UnsentRows(self._columns(others), (own, self._columns(of_which)))

    def _columns(self, owners: Ints) -> UnsentColumns:
        at = self._filtered[owners].nonzero()[0]
        of_filtered = owners[at]
        filters = at, self._counts[of_filtered], self._numbers[of_filtered, 1], self._numbers[of_filtered, 2]
        ranks = (filters[1] < _ALL).astype(np.int64) + (filters[2] < 1)
        columns = self._numbers[owners, 0], self._streams[owners]
        return UnsentColumns(*columns, filters, int(ranks.max())) if len(at) else UnsentColumns(*columns, None)


class UnsentColumns(NamedTuple):
    """`Columns` as arrays on the host."""

    temperatures: Floats
    streams: Ints
    filters: tuple[Ints, Ints, Floats, Floats] | None
    ranks: int = 0

    def sent(self, upload: UploadArray) -> Columns:
        """Send all columns with `upload`."""
        filters = None if self.filters is None else tuple(upload(each) for each in self.filters)
        return Columns(upload(self.temperatures), upload(self.streams), filters, self.ranks)


@dataclass(frozen=True, slots=True, eq=False)
class UnsentRows:
    """`DeviceRows` before the device knows of them. They may be sent again and again."""

    columns: UnsentColumns
    processed: tuple[ProcessedRows, UnsentColumns] | None = None

    def sent(self, upload: UploadArray) -> DeviceRows:
        """Put what the kernels read."""
        own = None if self.processed is None else (self.processed[0], self.processed[1].sent(upload))
        return DeviceRows(self.columns.sent(upload), own)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What the kernels read beside the logits of R rows."""

    temperatures: Tensor
    """float32 [R]; 0: greedy."""
    streams: Tensor
    """int64 [R]"""
    filters: Sequence[Tensor] | None
    """[F] each: which rows, top_k, top_p, the logarithm of min_p; see `bars`. None: no row has any."""
    ranks: int = 0
    """Of top_k and top_p, how many a row has at most."""

    def pick(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Pick from each row of logits [R, V] the token at positions int64 [R]: int64 [R]; -1 for a row without a pick."""
        if self.filters is None:
            excluded = torch.full_like(self.temperatures, -torch.inf)
        else:
            at, *filters = self.filters
            excluded = bars(logits, at, self.temperatures, *filters, ranks=self.ranks)
        return picks(logits, self.temperatures, self.streams, positions, excluded)


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedRows:
    """Rows whose logits are biased or penalised before anything else."""

    rows: Sequence[int]
    """[P] which of the forward's they are."""
    at: Tensor
    """[P] the same on the device."""
    sampling: SamplingRows
    """What is done to them."""

    def of(self, logits: Tensor, paths: Paths) -> Tensor:
        """Bias and penalise the logits of these rows, out of all logits [R, V]: float32 [P, V]."""
        own_paths = [paths[row] for row in self.rows] if self.sampling.penalties is not None else ()
        return processed(logits[self.at], self.sampling, own_paths)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRows:
    """R rows of one forward, each with its session's sampling."""

    columns: Columns
    processed: tuple[ProcessedRows, Columns] | None = None
    """Which rows are processed, and how they are picked behind that."""

    @torch.inference_mode()
    def pick(self, logits: Tensor, positions: Tensor, paths: Paths = ()) -> Tensor:
        """Pick from each row of logits [R, V], int64 [R] on the device; -1 for a row that has no pick, see `has_pick`.

        Row r picks the token at sequence index positions[r], of int64 [R]. The picks are those of `specsplit.sampling.pick`; nothing is
        waited for. paths[r] are the tokens that row r's text has beyond the committed ones; they may be left out where none are penalised.
        """
        picked = self.columns.pick(logits, positions)
        if self.processed is not None:
            rows, columns = self.processed
            picked[rows.at] = columns.pick(rows.of(logits, paths), positions[rows.at])
        return picked


def _numbers(sampling: Sampling) -> tuple[float, float, float]:
    temperature = 0.0 if sampling.greedy else max(sampling.temperature, COLDEST)
    return temperature, sampling.top_p, math.log(sampling.min_p) if sampling.min_p else -math.inf


def _processed(sampling: Sampling) -> bool:
    return bool(sampling.logit_bias) or sampling.penalised


def _filtered(sampling: Sampling) -> bool:
    return not sampling.greedy and (bool(sampling.top_k) or sampling.top_p < 1 or sampling.min_p > 0)
