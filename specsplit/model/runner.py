"""What every model that is served from paged KV has in common: its KV, the pages of it, and the attention backend over both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from specsplit.model.backends import BACKENDS, choose_backend
from specsplit.model.batch import Row
from specsplit.model.input_batch import InputBatch
from specsplit.model.kv import Geometry, KVCache
from specsplit.model.page_tables import Slots
from specsplit.model.pages import PagePool


class ModelRunner:
    """The KV of one model, or of one layer of it. Target, standalone draft and heads are runners. Used by one thread at a time."""

    def __init__(
        self,
        geometry: Geometry,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        backend: str = "auto",
    ) -> None:
        """Raises LoadError for an attention backend that is not there, or cannot be had for this."""
        self.pool: Final = PagePool(num_pages, page_size)
        self.kv: Final = KVCache(geometry, self.pool.num_slots, dtype, device)
        self.attention: Final = choose_backend(backend, self.kv)
        """Name of the backend."""
        self.backend: Final = BACKENDS[self.attention](self.kv, geometry.group, page_size)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.kv.data.device

    def inputs(self, rows: Sequence[Row]) -> InputBatch:
        """Rows (at least one) as a forward takes them."""
        return InputBatch(rows, self.pool.tables, self.device)

    def compact(self, kept: Sequence[tuple[Row, Sequence[int]]]) -> None:
        """Move the KV of some of a row's new tokens, in order of their indices, to the front of them; the others' is lost."""
        slots = self.pool.tables.slots
        places = [(row.pages.table, row.pages.length - row.num_tokens, np.array(path)) for row, path in kept]
        sources = [slots[table].take(first + path) for table, first, path in places]
        targets = [slots[table, first : first + len(path)] for table, first, path in places]
        self.move(np.concatenate(sources), np.concatenate(targets))

    @torch.inference_mode()
    def move(self, source: Slots, target: Slots) -> None:
        """Copy the KV in slots source [n] to slots target [n], in all layers; the two may overlap (compaction after a commit)."""
        self.kv.move(torch.from_numpy(source).to(self.device), torch.from_numpy(target).to(self.device))
