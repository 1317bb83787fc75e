"""One process's part of a model that is split over several: the leader's forwards are its followers' too."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from specsplit.model.backends import check_backend
from specsplit.model.batch import Row
from specsplit.model.capture import Hidden
from specsplit.model.causal_lm import CausalLM
from specsplit.model.commands import Command, Forward, Leave, Move, Trial, unpacked
from specsplit.model.graphs import Buckets, Capturer, StaticAttention
from specsplit.model.load import load_model
from specsplit.model.page_tables import Slots
from specsplit.model.support import refusing
from specsplit.model.tensor_group import TensorGroup


class SplitLM(CausalLM):
    """A CausalLM with the attention heads and the KV of this process alone. Once it leads, followers do whatever it does.

    All that may fail by itself (packing rows, say) comes before followers are told; what fails after that ends the group.
    """

    _group: TensorGroup | None = None
    """All processes, once this one leads or follows."""

    @classmethod
    def load_part(
        cls,
        folder: Path,
        group: TensorGroup,
        *,
        num_pages: int,
        page_size: int,
        dtype: str = "float32",
        device: str = "cpu",
        backend: str = "auto",
        kv_cache_dtype: str = "auto",
    ) -> Self:
        """Load this rank's part of a model, as `CausalLM.load` loads a whole one, together with all other ranks.

        Raises LoadError, saying why, if it cannot be served, and RankLost.
        """
        check_backend(backend, torch.device(device))
        model, info, _ = load_model(folder, dtype=dtype, device=device, split=group.processes)
        group.assemble()
        with refusing(f"model folder {folder} cannot be served"):
            return cls(
                model, info, num_pages=num_pages, page_size=page_size, backend=backend, kv_cache_dtype=kv_cache_dtype
            )

    def capture_together(
        self,
        group: TensorGroup,
        buckets: Buckets | None,
        layers: Collection[int] = (),
        *,
        capturer: Capturer | None = None,
        attention: StaticAttention | None = None,
    ) -> None:
        """As `capture_graphs`, on all ranks at the same time, before one of them leads. Raises Incompatible and RankLost."""
        self.capture.check(layers)
        with group.together():
            self.capture_program(
                self._captured,
                buckets,
                layers=frozenset(layers),
                together=group,
                capturer=capturer,
                attention=attention,
            )

    def lead(self, group: TensorGroup) -> None:
        """From now on the other ranks `follow`."""
        self._group = group

    def heed(self, group: TensorGroup) -> None:
        """From now on this rank does what another one tells it (`follow`)."""
        self._group = group

    @property
    def _followers(self) -> TensorGroup | None:
        return self._group if self._group is not None and self._group.leads else None

    def forward_capturing(self, rows: Sequence[Row], layers: Collection[int]) -> tuple[Tensor, Hidden]:
        """As CausalLM. Hidden states are whole here, and of no use to followers."""
        if self._followers is None or not rows:
            return super().forward_capturing(rows, layers)
        self.capture.check(layers)
        demand = self.demand(rows, layers)
        self._followers.tell(Forward(rows, demand).packed(self.pool.tables))
        with self._followers.together(), self.turn([1], demand):
            return super().forward_capturing(rows, layers)

    def trial(self) -> None:
        """As CausalLM."""
        if self._followers is None:
            return super().trial()
        self._followers.tell(Trial().packed())
        with self._followers.together():
            return super().trial()

    def move(self, source: Slots, target: Slots) -> None:
        """As ModelRunner."""
        if self._followers is not None:
            self._followers.tell(Move(source, target).packed())
        super().move(source, target)

    def _settle(self) -> None:
        super()._settle()
        if self._group is not None:
            self._group.settle()


def follow(lm: SplitLM, group: TensorGroup) -> None:
    """Do what the leader tells, until it leaves. Raises RankLost."""
    lm.heed(group)
    while not isinstance(command := unpacked(group.hear()), Leave):
        with group.together():
            _obey(lm, command)


def _obey(lm: SplitLM, command: Command) -> None:
    match command:
        case Forward():
            with lm.turn([1], command.demand):
                lm.forward(command.rows)
        case Move():
            lm.move(command.source, command.target)
        case Trial():
            lm.trial()
        case Leave():
            pass
