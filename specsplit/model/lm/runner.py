"""What every model that is served from paged KV has in common: its KV, the pages of it, and the attention backend over both."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import cached_property, partial
from typing import Final
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.choosing import backend_over, planner_on_device
from specsplit.model.attention.interface import DevicePlanner, ForwardBatch
from specsplit.model.attention.measuring import step_seconds
from specsplit.model.graphs import (
    Buckets,
    Capturer,
    CudaCapturer,
    Graphs,
    Program,
    SharedCapturer,
    SharedGraphs,
    StaticAttention,
    StaticInputs,
    Together,
    Wrap,
)
from specsplit.model.pages.batch import Row
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.geometry import Geometry
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import STORED, KVCache
from specsplit.model.pages.pool import PagePool
from specsplit.model.pages.room import Room
from specsplit.model.pages.tables import Slots
from specsplit.model.pages.windows import WindowTokens, windows_of
from specsplit.model.tensors.transfer import on_device
from specsplit.records import GraphStatistics

_log = logging.getLogger(__name__)


class ModelRunner:
    """The KV of one model, or of one layer of it. Target, standalone draft and heads are runners. Used by one thread at a time."""

    def __init__(
        self,
        geometry: Geometry,
        num_pages: int | Room,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        backend: str = "auto",
        kv_cache_dtype: str = "auto",
        window_tokens: WindowTokens | None = None,
        *,
        alone: bool = True,
    ) -> None:
        """`num_pages`: or the memory that they may take. `kv_cache_dtype`: a name of `STORED`. `window_tokens`: for how
        many tokens layers have room that see a window, where others see all; None: for all tokens. `alone`: False for
        one of several ranks or processes, which all come to the same backend: none is measured.

        Raises LoadError for an attention backend that is not there, or cannot be had for this, and for too little room for one session.
        """
        stored = STORED[kv_cache_dtype]
        if isinstance(num_pages, Room):
            num_pages = num_pages.pages(geometry, page_size, (stored or dtype).itemsize, window_tokens)
        windows = windows_of(geometry, num_pages, page_size, window_tokens)
        window_slots = 0 if windows is None else (windows.total_pages + 1) * page_size
        self.pool: Final = PagePool(num_pages, page_size, geometry.spans, windows)
        self.kv: Final = KVCache(geometry, (num_pages + 1) * page_size, dtype, device, stored, window_slots)
        seconds = partial(step_seconds, kv=self.kv, pool=self.pool) if alone else None
        self.attention, self.backend = backend_over(backend, self.kv, page_size, seconds)
        """Name of the backend, and the backend."""
        self.graphs: Graphs | SharedGraphs | None = None
        """The captured forwards; None: every forward is run eagerly."""

    @property
    def spare_page(self) -> int:
        """A page of the KV that the pool never hands out: the padding of captured forwards lives there."""
        return self.pool.spare_page

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.kv.device

    @property
    def graph_statistics(self) -> GraphStatistics:
        """What has become of its forwards since they were captured. Any thread may ask."""
        return GraphStatistics() if self.graphs is None else self.graphs.statistics

    def unrounded(self, num_pages: int) -> ModelRunner:
        """A runner of the same shape, with KV of its own that is kept in the type that attention computes in."""
        return ModelRunner(
            self.kv.geometry, num_pages, self.pool.page_size, self.kv.dtype, self.device, backend=self.attention
        )

    def inputs(self, rows: Sequence[Row]) -> InputBatch:
        """Rows (at least one) as a forward takes them."""
        return InputBatch(rows, self.pool.tables, self.device)

    def capture_program(
        self,
        program: Program,
        buckets: Buckets | None,
        *,
        layers: frozenset[int] = frozenset(),
        together: Together | None = None,
        lazily: bool = False,
        capturer: Capturer | None = None,
        attention: StaticAttention | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        """Capture a forward for every bucket, or `lazily` the largest (then `capture_next` has others), if the backend can be captured.

        Else, or if it fails, none is, and the log says so.

        `buckets`: None captures nothing. `layers`: whose hidden states the captured forwards leave; who wants others is run eagerly.
        `together`: the program exchanges tensors with other ranks, on all of which this is called at the same time; all of them capture
        the same, or none does, and at once: raises RankLost. `capturer` and `attention` stand for those of the device and of the backend.
        `wrap`: for what the captured forwards go by beside how they attend.
        """
        if buckets is not None and attention is None:
            attention = self.backend.static(self.pool.tables, buckets)
            if attention is None:
                _log.debug("no forward is captured: attention = %s runs eagerly", self.attention)
        if buckets is not None and attention is not None and wrap is not None:
            attention = wrap(attention, buckets)
        if together is not None and not _alike(together, buckets, layers, attention):
            return
        if buckets is None or attention is None:
            return
        capturer = capturer or CudaCapturer(self.device)
        inputs = StaticInputs(self.pool.tables, self.spare_page, buckets.most_tokens, self.device)
        if together is not None:
            capturer = SharedCapturer(capturer, together)
        graphs = Graphs(program, inputs, attention, buckets, capturer, layers)
        self.graphs = graphs if together is None else SharedGraphs(graphs, together)
        _capture(graphs, lazily=lazily and together is None)

    def give_up_graphs(self) -> None:
        """Give up what this process alone has captured: what it reads is about to go."""
        if isinstance(self.graphs, Graphs):
            self.graphs.drop()

    def capture_again(self, wrap: Wrap) -> None:
        """Capture anew and lazily, if this process alone has captured any, what has other modules than before.

        If that fails nothing is captured, and the log says so.
        """
        if isinstance(self.graphs, Graphs):
            self.graphs = self.graphs.anew(wrap, CudaCapturer(self.device) if self.device.type == "cuda" else None)
            _capture(self.graphs, lazily=True)

    def capture_next(self) -> bool:
        """Capture the largest forward that is not captured yet, which takes as long as several. False: there is none to capture."""
        return isinstance(self.graphs, Graphs) and self.graphs.capture_next()

    def capture_for(self, rows: Sequence[Row]) -> None:
        """Capture the forward that rows like these would be run in, if it is not captured yet."""
        if isinstance(self.graphs, Graphs):
            self.graphs.capture_for(rows)

    @cached_property
    def device_planner(self) -> DevicePlanner | None:
        """Who plans what only the device knows; None: nobody can. It is set up when it is asked for first, which may compile kernels."""
        return planner_on_device(self.backend, self.kv, self.pool.page_size)

    def plan_on_device(self, batch: DeviceBatch) -> ForwardBatch:
        """Plan a batch that only the device knows."""
        planner = self.device_planner
        assert planner is not None, "who has such a batch has looked whether there is one"
        assert self.pool.windows is None, "the device is not told of window pages"
        return planner.plan_on_device(batch)

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
        window = None
        if self.pool.windows is not None:
            window = self._put(self.pool.windows.slots_of(source)), self._put(self.pool.windows.slots_of(target))
        self.kv.move(self._put(source), self._put(target), window)

    def _put(self, slots: Slots) -> Tensor:
        return on_device(slots, self.device)


def _capture(graphs: Graphs, *, lazily: bool) -> None:
    """Capture all graphs, or `lazily` the largest. If that fails there are none, and the log says why."""
    try:
        graphs.capture(lazily=lazily)
    except RuntimeError as error:
        _log.warning(
            "every forward is run eagerly, which is slower: CUDA graphs cannot be captured (if for want of memory, set "
            "cuda_graph_tokens or cuda_graph_rows lower; cuda_graphs = off does without them): %s",
            error,
        )


def _alike(
    together: Together, buckets: Buckets | None, layers: Collection[int], attention: StaticAttention | None
) -> bool:
    """Whether all ranks are to capture the same. They tell each other. Raises RankLost."""
    own = (0, 0, 0, 0)
    if buckets is not None and attention is not None:
        checksum = crc32(repr(sorted(layers)).encode())
        own = (buckets.most_tokens, buckets.most_rows, len(attention.forms), checksum)
    plans = together.assemble(own)
    if len(set(plans)) > 1:
        _log.warning(
            "every forward is run eagerly, which is slower: ranks would capture different CUDA graphs; set cuda_graphs, "
            "cuda_graph_tokens, cuda_graph_rows, cuda_graph_layers and attention alike on all of them (tokens, rows, forms and checksum of "
            "layers by rank: %s)",
            ", ".join(map(str, plans)),
        )
    return len(set(plans)) == 1
