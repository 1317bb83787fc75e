"""What every model that is served from paged KV has in common: its KV, the pages of it, and the attention backend over both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.attention import BackendFactory, ForwardBatch
from specsplit.model.batch import PackedBatch, Row
from specsplit.model.kv import Geometry, KVCache
from specsplit.model.page_tables import Slots
from specsplit.model.paged_rows import PagedRows
from specsplit.model.pages import PagePool
from specsplit.model.torch_attention import TorchAttention

BACKENDS: Final[dict[str, BackendFactory]] = {"torch": TorchAttention}
"""Ways to attend, by name."""


def check_backend(name: str) -> None:
    """Raise LoadError, saying which there are, for a name that is none of them."""
    if name not in BACKENDS:
        raise LoadError(f"attention backend {name!r} is not there; expected {' or '.join(map(repr, BACKENDS))}")


@dataclass(frozen=True, slots=True, eq=False)
class ForwardInputs:
    """Rows as a model reads them, on its device."""

    tokens: Tensor
    """[T]"""
    positions: Tensor
    """[T]"""
    logits_at: Tensor
    """[n] indices into T."""
    write_slots: Tensor
    """[T] where the KV of the tokens goes."""
    forward_batch: ForwardBatch


class ModelRunner:
    """The KV of one model, or of one layer of it. Target, standalone draft and heads are runners. Used by one thread at a time."""

    def __init__(
        self,
        geometry: Geometry,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        backend: str = "torch",
    ) -> None:
        """Raises LoadError for a backend that is not there."""
        check_backend(backend)
        self.pool: Final = PagePool(num_pages, page_size)
        self.kv: Final = KVCache(geometry, self.pool.num_slots, dtype, device)
        self.backend: Final = BACKENDS[backend](self.kv, geometry.group)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.kv.data.device

    def inputs(self, rows: Sequence[Row]) -> ForwardInputs:
        """Lay rows (at least one) out, once per forward."""
        batch = PackedBatch.pack(rows)
        tokens, positions, logits_at = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (batch.input_ids, batch.positions, batch.logits_at)
        )
        paged = PagedRows(batch, self.pool.tables, self.device)
        return ForwardInputs(tokens, positions, logits_at, paged.write_slots, self.backend.plan(batch, paged))

    def compact(self, kept: Sequence[tuple[Row, Sequence[int]]]) -> None:
        """Move the KV of some of a row's new tokens, in order of their indices, to the front of them; the others' is lost."""
        tables = self.pool.tables
        places = [(row.pages.table, row.pages.length - row.num_tokens, np.array(path)) for row, path in kept]
        sources = [tables.slots(table, first + path) for table, first, path in places]
        targets = [tables.slots(table, first + np.arange(len(path))) for table, first, path in places]
        self.move(np.concatenate(sources), np.concatenate(targets))

    @torch.inference_mode()
    def move(self, source: Slots, target: Slots) -> None:
        """Copy the KV in slots source [n] to slots target [n], in all layers; the two may overlap (compaction after a commit)."""
        self.kv.move(torch.from_numpy(source).to(self.device), torch.from_numpy(target).to(self.device))
