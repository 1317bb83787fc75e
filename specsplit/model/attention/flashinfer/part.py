"""One wrapper of FlashInfer's for forwards that are planned as they come, and how it is told what to attend to."""

from __future__ import annotations

from typing import Any, Final, Self

import numpy as np
from torch import Tensor

from specsplit.model.attention.flashinfer.forward import Library, Paged, PagedKV
from specsplit.model.attention.flashinfer.plan import PagedRows
from specsplit.model.pages.geometry import Layer
from specsplit.model.tensors.transfer import Event, given_so_far, pinned


class EagerPart:
    """One wrapper (a Part), which keeps what it was told by `plan`.

    Its plan is copied to the device out of pinned memory of its own, which the next plan overwrites: that waits for the copy.
    """

    def __init__(self, library: Library, kv: PagedKV, kind: Layer, *, causal: bool) -> None:
        self._kv: Final = kv
        self._kind: Final = kind
        self._causal: Final = causal
        self._wrapper: Final = self._made(library)
        self._planned: Event | None = None
        """Behind the copies of the latest plan; None: there is none that has to be waited for."""

    def plan(self, rows: PagedRows) -> Self:
        """Have it attend to rows, in layers of its kind."""
        arrays = (rows.qo_indptr, rows.kv_indptr, rows.last_page_len, rows.lengths, rows.indices)
        parts = pinned(np.concatenate(arrays), self._kv.device).split([len(array) for array in arrays])
        qo_indptr, kv_indptr, last_page_len, lengths, indices = parts
        mask = None if rows.mask is None else pinned(rows.mask, self._kv.device)
        self._told(rows, Paged(qo_indptr, kv_indptr, last_page_len, lengths, indices, mask))
        return self

    def run(self, layer: int, query: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        return self._kv.run(self._wrapper, layer, query, scaling)

    def _told(self, rows: PagedRows, paged: Paged) -> None:
        if self._planned is not None:
            self._planned.synchronize()  # a forward ago: done long since, unless nobody asked what came of that
        self._tell(rows, paged)
        self._planned = given_so_far(self._kv.device)

    def _made(self, library: Library) -> Any:
        return library.BatchPrefillWithPagedKVCacheWrapper(self._kv.workspace(), kv_layout="NHD", backend="fa2")

    def _tell(self, rows: PagedRows, paged: Paged) -> None:
        """Give the wrapper its plan; `paged` holds the same rows as tensors."""
        self._kv.plan(self._wrapper, self._kind, rows, paged, self._causal)
