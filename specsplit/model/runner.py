"""What every model that is served from paged KV has in common: its KV, the pages of it, and the attention backend over both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from specsplit.model.attention import ForwardBatch
from specsplit.model.backends import BACKENDS, choose_backend
from specsplit.model.batch import Row
from specsplit.model.device_batch import DeviceBatch
from specsplit.model.graphs import Buckets, Capturer, CudaCapturer, Graphs, Program, StaticAttention, StaticInputs
from specsplit.model.input_batch import InputBatch
from specsplit.model.kv import STORED, Geometry, KVCache
from specsplit.model.page_tables import Slots
from specsplit.model.pages import PagePool
from specsplit.model.torch_attention import plan_on_device
from specsplit.records import GraphStatistics

_log = logging.getLogger(__name__)


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
        kv_cache_dtype: str = "auto",
    ) -> None:
        """`kv_cache_dtype`: a name of `STORED`. Raises LoadError for an attention backend that is not there, or cannot be had for this."""
        self.pool: Final = PagePool(num_pages, page_size)
        self.spare_page: Final = num_pages
        """A page of the KV that the pool never hands out: the padding of captured forwards lives there."""
        self.kv: Final = KVCache(geometry, (num_pages + 1) * page_size, dtype, device, STORED[kv_cache_dtype])
        self._geometry: Final = geometry
        self.attention: Final = choose_backend(backend, self.kv)
        """Name of the backend."""
        self.backend: Final = BACKENDS[self.attention](self.kv, geometry.group, page_size)
        self.graphs: Graphs | None = None
        """Its captured forwards; None: every forward is run eagerly."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.kv.data.device

    @property
    def graph_statistics(self) -> GraphStatistics:
        """What has become of its forwards since they were captured. Any thread may ask."""
        return GraphStatistics() if self.graphs is None else self.graphs.statistics

    def unrounded(self, num_pages: int) -> ModelRunner:
        """A runner of the same shape, with KV of its own that is kept in the type that attention computes in."""
        return ModelRunner(
            self._geometry, num_pages, self.pool.page_size, self.kv.dtype, self.device, backend=self.attention
        )

    def inputs(self, rows: Sequence[Row]) -> InputBatch:
        """Rows (at least one) as a forward takes them."""
        return InputBatch(rows, self.pool.tables, self.device)

    def capture_program(
        self,
        program: Program,
        buckets: Buckets,
        *,
        layers: frozenset[int] = frozenset(),
        shared: bool = False,
        capturer: Capturer | None = None,
        attention: StaticAttention | None = None,
    ) -> None:
        """Capture a forward for every bucket, if the attention backend can be captured; else, or if it fails, none, and the log says so.

        `layers`: whose hidden states the captured forwards leave; who wants others is run eagerly.
        `shared`: it exchanges rows with the other ranks of a group, which is not captured: whether one is lost shows when the host waits.
        `capturer` and `attention` stand for those of the device and of the backend.
        """
        attention = attention or self.backend.static(self.pool.tables, buckets)
        if attention is None:
            _log.debug("no forward is captured: attention = %s runs eagerly", self.attention)
            return
        if shared:
            _log.warning("every forward is run eagerly: a rank that is lost would not be noticed within a CUDA graph")
            return
        inputs = StaticInputs(self.pool.tables, self.spare_page, buckets.most_tokens, self.device)
        try:
            self.graphs = Graphs(program, inputs, attention, buckets, capturer or CudaCapturer(self.device), layers)
            self.graphs.capture()
        except RuntimeError as error:
            _log.warning(
                "every forward is run eagerly, which is slower: CUDA graphs cannot be captured (if for want of memory, set "
                "cuda_graph_tokens or cuda_graph_rows lower; cuda_graphs = off does without them): %s",
                error,
            )

    def plan_on_device(self, batch: DeviceBatch) -> ForwardBatch:
        """Plan a batch that only the device knows. It attends by torch with every backend: other kernels are planned on the host."""
        return plan_on_device(self.kv, self._geometry.group, batch)

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
