"""What every model that is served from paged KV has in common: its KV, the pages of it, and the attention backend over both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.attention import BackendFactory, ForwardBatch
from specsplit.model.batch import PackedBatch, Row
from specsplit.model.kv import Geometry, KVCache
from specsplit.model.pages import PagePool, Slots
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
        return ForwardInputs(tokens, positions, logits_at, self.backend.plan(batch))

    @torch.inference_mode()
    def move(self, source: Slots, target: Slots) -> None:
        """Copy the KV in slots source [n] to slots target [n], in all layers; the two may overlap (compaction after a commit)."""
        self.kv.move(torch.from_numpy(source).to(self.device), torch.from_numpy(target).to(self.device))
