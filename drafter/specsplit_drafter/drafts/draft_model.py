"""The interface of a model that drafts, and the input of one of its forwards.

A model has one step or several, each with a KV pool of its own. A causal language model is the plain case: one step, which reads tokens.
A head's steps read features of the committed tokens too, and states (see heads.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from specsplit.model.layers.sharded import ShardedBlocks
from specsplit.model.pages.batch import Ints, Row
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.pool import PagePool
from specsplit.model.pages.tables import Slots
from specsplit.records import GraphStatistics
from specsplit.values import DrafterInfo
from specsplit_drafter.drafts.draft_weights import DraftWeights

_NONE: Final[Ints] = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class ExpansionInput:
    """The input of one step in one expansion, of one session or of some. Rows that read features come before those that read states."""

    rows: list[Row] = field(default_factory=list[Row])
    features: list[Tensor] = field(default_factory=list[Tensor])
    """Features [n, width] for the first rows."""
    sources: list[Slots] = field(default_factory=list[Slots])
    """Slots [n] of the states that the other rows read."""
    wanted: list[int] = field(default_factory=list[int])
    """The nodes that the rows ask logits for, in the same order, by their numbers in the whole frontier."""

    @staticmethod
    def joined(parts: Sequence[ExpansionInput]) -> ExpansionInput:
        """Make one input of several sessions' parts, in order, but rows that read features come first."""
        whole = ExpansionInput()
        fed, others = zip(*(part.split() for part in parts), strict=True)
        for part in (*fed, *others):
            whole.rows += part.rows
            whole.features += part.features
            whole.sources += part.sources
            whole.wanted += part.wanted
        return whole

    def split(self) -> tuple[ExpansionInput, ExpansionInput]:
        """Split one session's part into the row that reads features, if there is one, and the others."""
        if not self.features:
            return ExpansionInput(), self
        asked = len(self.rows[0].logits_at)
        fed = ExpansionInput(self.rows[:1], self.features, [], self.wanted[:asked])
        return fed, ExpansionInput(self.rows[1:], [], self.sources, self.wanted[asked:])

    @property
    def num_tokens(self) -> int:
        """Tokens in all rows."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def source_slots(self) -> Slots:
        """All of `sources` as one array."""
        return np.concatenate([_NONE, *self.sources])

    @property
    def logits_at(self) -> Ints:
        """Indices of the tokens whose logits are wanted, among all tokens of the rows [len(wanted)]."""
        found: list[int] = []
        start = 0
        for row in self.rows:
            found += [start + index for index in row.logits_at]
            start += row.num_tokens
        return np.array(found, dtype=np.int64)


class DraftModel(Protocol):
    """A model that a ModelProposer can draft with. It alone uses its KV pools, whose pages are of one slot."""

    @property
    def info(self) -> DrafterInfo:
        """The info of a drafter with this model."""
        ...

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that logits are on."""
        ...

    @property
    def pools(self) -> Sequence[PagePool]:
        """The pools of KV slots, by step."""
        ...

    @property
    def blocks(self) -> Sequence[ShardedBlocks]:
        """The parts that ranks of a group share, by step; not asked for where there is no group."""
        ...

    @property
    def graph_statistics(self) -> GraphStatistics:
        """How many forwards of all steps were replayed or run eagerly, and why. Any thread may ask."""
        ...

    def capture_next(self) -> bool:
        """Capture a forward that is not captured yet, which takes as long as several. False: there is none."""
        ...

    @property
    def weights(self) -> DraftWeights:
        """The weights that it computes with."""
        ...

    @property
    def recurrent(self) -> bool:
        """True if its one step predicts from nodes of any depth; otherwise step d predicts from those at depth d below the root."""
        ...

    def set_up_levels(self) -> bool:
        """Set up what `run_level` takes, for a recurrent model: kernels may be compiled, for minutes. False: it cannot be called."""
        ...

    @property
    def feature_dtype(self) -> torch.dtype | None:
        """The dtype of features until they are read; None for a model that reads none."""
        ...

    def run(self, step: int, work: ExpansionInput) -> Tensor:
        """Compute the rows (at least one) of a step -> logits float32 [len(wanted), V].

        Writes KV and states of those rows and nothing else, so it may be repeated.
        """
        ...

    def run_level(self, batch: DeviceBatch, sources: Tensor) -> Tensor:
        """Compute, with a recurrent model, nodes that the device has chosen, without waiting for it -> logits [B * Q, V].

        sources int64 [B * Q]: slots of the parents of the tokens. Writes KV and states of the tokens and nothing else.
        """
        ...
