"""Sampling of the target's tokens on the host, with the noise of each session, which is made while the forward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from specsplit.model.tensors.transfer import on_device
from specsplit.sampling import (
    NoiseCache,
    SamplingBatch,
    SamplingRows,
    TokenCounts,
    divisors_of,
    likeliest_tokens,
    pick,
    pick_noisy,
    prepare_noise,
)
from specsplit.values import Sampling
from specsplit_verifier.records.step import TreeInput
from specsplit_verifier.target.bars import Bars

NOISE_BYTES = 64 * 2**20  # rows of noise kept: the next step asks again for most positions of this one
MOST_SHAPES = 64
"""Shapes of forwards of the same sessions whose row indices are kept, at most."""

Pick: TypeAlias = Callable[[Tensor], list[int | None]]
"""Logits [n, V] behind every token of the drafts, end to end -> the n tokens picked; None where there is no pick."""

_Rows = TypeVar("_Rows")
_Rows_co = TypeVar("_Rows_co", covariant=True)


class Batch(Protocol[_Rows_co]):
    """The sampling of some sessions: a SamplingBatch or a DeviceBatch."""

    def rows(self, owners: Sequence[int]) -> _Rows_co:
        """Index the rows of a forward: row r is of the session owners[r]."""
        ...


MakeBatch: TypeAlias = Callable[[Sequence[Sampling], int, torch.device, Sequence[TokenCounts | None]], Batch[_Rows]]


class TreeRows(Generic[_Rows]):
    """The sampling of the rows of steps. It is kept: most steps are of the same sessions as the one before, and many of the same shape."""

    def __init__(self, make: MakeBatch[_Rows], vocab_size: int, device: torch.device) -> None:
        self._make = make
        self._vocab_size = vocab_size
        self._device = device
        self._sessions: Sequence[tuple[Sampling, TokenCounts | None]] = ()
        self._batch: Batch[_Rows] | None = None
        self._rows: dict[tuple[int, ...], _Rows] = {}
        """Row indices by the widths of all drafts."""

    def of(self, trees: Sequence[TreeInput]) -> _Rows:
        """Index the rows of a step: every token of every draft is one."""
        sessions = [(tree.sampling, tree.counts) for tree in trees]
        widths = tuple(len(tree.draft.tokens) for tree in trees)
        if self._batch is None or sessions != self._sessions:
            samplings, counts = [sampling for sampling, _ in sessions], [counts for _, counts in sessions]
            self._batch, self._rows = self._make(samplings, self._vocab_size, self._device, counts), {}
            self._sessions = sessions
        rows = self._rows.get(widths)
        if rows is None:
            rows = self._batch.rows([owner for owner, width in enumerate(widths) for _ in range(width)])
            if len(self._rows) == MOST_SHAPES:
                self._rows.clear()
            self._rows[widths] = rows
        return rows


class _Kind(Enum):
    """What there is to do to pick the rows of a step."""

    PLAIN = auto()
    """Nothing: all are picked by their logits."""
    NOISY = auto()
    """Some get noise, and none anything else."""
    OTHER = auto()


def _kind_of(samplings: Sequence[Sampling]) -> _Kind:
    if all(sampling.plain for sampling in samplings):
        return _Kind.PLAIN
    return _Kind.NOISY if all(sampling.plain or sampling.noisy for sampling in samplings) else _Kind.OTHER


class Sampler:
    """Picks for one target."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        prepare_noise(device)
        self._noise = NoiseCache(NOISE_BYTES)
        self._beside = ThreadPoolExecutor(1, "noise")
        self._bars = Bars()
        self._rows: TreeRows[SamplingRows] = TreeRows(SamplingBatch, vocab_size, device)
        self._samplings: Sequence[Sampling] = ()
        self._kind = _Kind.PLAIN
        """What there is to do for these, which most steps have in common with the one before."""

    def prepare(self, trees: Sequence[TreeInput]) -> Pick:
        """Prepare picking behind these drafts, before their forward: the noise is made while that runs."""
        bars, picked = self._bars.begin(trees), self._prepare(trees)
        if bars is None:
            return picked
        upload = partial(on_device, device=self._device)
        return lambda logits: picked(bars(upload)(logits))

    def _prepare(self, trees: Sequence[TreeInput]) -> Pick:
        samplings = [tree.sampling for tree in trees]
        if samplings != self._samplings:
            self._samplings, self._kind = samplings, _kind_of(samplings)
        if self._kind is _Kind.PLAIN:
            return likeliest_tokens
        if self._kind is _Kind.NOISY and self._device.type == "cpu":
            return self._noisy(trees)
        rows = self._rows.of(trees)
        positions = [position + 1 for tree in trees for position in tree.draft.positions]
        made, paths = self._make(rows.seeds, rows.of_sampled(positions)), paths_of(trees)

        @torch.inference_mode()
        def sampled(logits: Tensor) -> list[int | None]:
            made()
            return pick(logits, rows, positions, paths, self._noise)

        return sampled

    def _noisy(self, trees: Sequence[TreeInput]) -> Pick:
        """Prepare picking where rows need nothing but noise: without an index of the rows, which steps of many sessions seldom share."""
        owners = [tree.sampling for tree in trees for _ in tree.draft.tokens]
        positions = [position + 1 for tree in trees for position in tree.draft.positions]
        divisors = divisors_of([sampling.temperature for sampling in owners])
        drawn = [row for row, sampling in enumerate(owners) if not sampling.greedy]
        at = None if len(drawn) == len(owners) else drawn
        of = [owners[row].seed for row in drawn], [positions[row] for row in drawn]
        made = self._make(*of)

        def noisy(logits: Tensor) -> list[int | None]:
            made()
            return pick_noisy(logits, divisors, self._noise(*of, self._vocab_size, self._device), at)

        return noisy

    def _make(self, seeds: Sequence[int], positions: Sequence[int]) -> Callable[[], None]:
        """Begin to make the noise that is missing -> a function that waits for it."""
        if self._noise.has(seeds, positions):
            return lambda: None
        return self._beside.submit(self._noise.warm, seeds, positions, self._vocab_size, self._device).result


def paths_of(trees: Sequence[TreeInput]) -> list[Sequence[int]]:
    """List the tokens from below the root to each token of the drafts; empty where no penalties count them."""
    return [path for tree in trees for path in _paths(tree)]


def _paths(tree: TreeInput) -> Sequence[Sequence[int]]:
    if tree.counts is None:
        return [()] * len(tree.draft.tokens)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.draft.tokens, tree.draft.parents, strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else ())
    return paths
