"""FlashInfer in captured forwards: wrappers whose plans lie in memory that stays where it is.

A wrapper in the package's CUDA-graph mode takes a fixed number of rows, and as many tokens as in its first plan. Then its grid, its tile
size and the places within its workspaces follow from these two alone, so what was captured is right for every later plan. There is one
wrapper for each bucket; those that are never planned for the same forward share the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from specsplit.model.attention.flashinfer.forward import FlashInferForward, Library, Paged, PagedKV, PlannedGroup
from specsplit.model.attention.flashinfer.plan import Form, Layout, PagedRows, forms_of, lay_out
from specsplit.model.pages.batch import Row
from specsplit.model.pages.buckets import Bucket, Buckets
from specsplit.model.pages.geometry import Layer
from specsplit.model.pages.tables import PageTables
from specsplit.model.tensors.transfer import pinned_zeros
from specsplit.model.tensors.upload import Upload

_PLAN_BYTES: Final = 256 << 10
"""For one plan: some numbers of 4 bytes for each tile of queries, of which there are a few hundred, and for each token."""
_MASK_BYTES: Final = 1 << 20
"""For the masks of rows; that of padding, which is a row of up to all tokens, has room besides."""
_MOST_PAGES: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """Where the wrappers of one part have their plans: those of all buckets in the same place."""

    indptrs: Tensor
    """int32 [3, most rows + 1]: qo_indptr, kv_indptr, mask_indptr"""
    last_page_len: Tensor
    """int32 [most rows]"""
    indices: Upload
    mask: Upload | None
    """None: nothing is masked."""
    plan: Tensor
    """What the package computes of a plan, uint8."""
    workspace: Tensor
    """What its kernels write to."""

    @classmethod
    def of(cls, buckets: Buckets, most_pages: int, workspace: Tensor, *, masked: bool) -> _Memory:
        """`most_pages`: of rows, and as many of padding as there are tokens."""
        rows, tokens, device = buckets.most_rows + 1, buckets.most_tokens, workspace.device
        return cls(
            torch.zeros(3, rows + 1, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            Upload(most_pages + tokens, torch.int32, device),
            Upload(_MASK_BYTES + tokens * tokens, torch.uint8, device) if masked else None,
            torch.zeros(_PLAN_BYTES, dtype=torch.uint8, device=device),
            workspace,
        )

    def wrapper(self, library: Library, rows: int) -> Any:
        """Make a wrapper for so many rows."""
        indptrs, mask = self.indptrs[:, : rows + 1], self.mask
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(
            self.workspace,
            kv_layout="NHD",
            use_cuda_graph=True,
            qo_indptr_buf=indptrs[0],
            paged_kv_indptr_buf=indptrs[1],
            paged_kv_indices_buf=self.indices.memory,
            paged_kv_last_page_len_buf=self.last_page_len[:rows],
            custom_mask_buf=None if mask is None else mask.memory,
            mask_indptr_buf=None if mask is None else indptrs[2],
            backend="fa2",
        )
        wrapper.reset_workspace_buffer(self.workspace, self.plan)
        return wrapper


class _StaticPart:
    """The wrappers of one bucket for one part of a forward (a Part): two that plan alternately, for what was captured with the first."""

    def __init__(self, library: Library, kv: PagedKV, kind: Layer, memory: _Memory, rows: int, *, causal: bool) -> None:
        self._kv: Final = kv
        self._kind: Final = kind
        self._memory: Final = memory
        self._rows: Final = rows
        self._causal: Final = causal
        self._wrappers: Final = [memory.wrapper(library, rows) for _ in range(2)]
        self._hosts: Final = [pinned_zeros(4 * rows + 2, torch.int32, kv.device) for _ in range(2)]

    def plan(self, rows: PagedRows, half: int) -> None:
        rows, count = rows.padded(self._rows), self._rows
        host = self._hosts[half].split([count + 1, count + 1, count, count])
        for field, array in zip(host, (rows.qo_indptr, rows.kv_indptr, rows.last_page_len, rows.lengths), strict=True):
            field.numpy()[:] = array
        qo_indptr, kv_indptr, last_page_len, lengths = host
        indices = _sent(self._memory.indices, half, rows.indices)
        mask = None if self._memory.mask is None else _sent(self._memory.mask, half, _mask(rows))
        paged = Paged(qo_indptr, kv_indptr, last_page_len, lengths, indices, mask)
        self._kv.plan(self._wrappers[half], self._kind, rows, paged, self._causal)

    def run(self, layer: int, query: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        return self._kv.run(self._wrappers[0], layer, query, scaling)


class _Parts(NamedTuple):
    """The parts of the forwards of one bucket, in layers of one kind."""

    ordered: _StaticPart
    masked: _StaticPart
    prefix: _StaticPart

    def planned(self, bucket: Bucket, form: Form) -> PlannedGroup:
        """All tokens, in a form."""
        return PlannedGroup(slice(0, bucket.tokens), self._seen(form), self.prefix if form is Form.SPLIT else None)

    def plan(self, layout: Layout, form: Form, half: int) -> None:
        self._seen(form).plan(layout.seen, half)
        if layout.prefix is not None:
            self.prefix.plan(layout.prefix, half)

    def _seen(self, form: Form) -> _StaticPart:
        """What attends to all of it, or to what is masked."""
        return self.ordered if form is Form.ORDERED else self.masked


class _Memories(NamedTuple):
    """What the parts of one kind share with those of other buckets."""

    ordered: _Memory
    masked: _Memory
    prefix: _Memory

    def parts(self, library: Library, kv: PagedKV, kind: Layer, rows: int) -> _Parts:
        """The parts for so many rows."""
        return _Parts(*(_StaticPart(library, kv, kind, each, rows, causal=each is self.ordered) for each in self))


class StaticFlashInfer:
    """How the captured forwards of one runner attend (a StaticAttention): in one form for all kinds of layers."""

    def __init__(
        self,
        library: Library,
        kv: PagedKV,
        attends: Callable[[tuple[Tensor, Tensor], Sequence[Sequence[PlannedGroup]]], FlashInferForward],
        tables: PageTables,
        buckets: Buckets,
        whole_mask: int,
    ) -> None:
        """`attends` makes a forward of write slots and groups by kind."""
        self.forms: Final = tuple(Form)
        self._library: Final = library
        self._kv: Final = kv
        self._attends: Final = attends
        self._tables: Final = tables
        self._whole_mask: Final = whole_mask
        self._most_pages: Final = max(kv.num_pages, min(buckets.most_rows * kv.num_pages, _MOST_PAGES))
        workspace = kv.workspace(buckets)
        self._memories: Final = [
            _Memories(*(_Memory.of(buckets, self._most_pages, workspace, masked=each) for each in (False, True, False)))
            for _ in kv.kinds.each
        ]
        self._parts: Final[dict[Bucket, list[_Parts]]] = {}

    def fitting(self, rows: Sequence[Row]) -> list[Form]:
        size = self._tables.page_size
        if sum(-(-row.pages.length // size) for row in rows) > self._most_pages:
            return []
        forms = forms_of(rows, size, self._whole_mask, self._kv.kinds.spans)
        return [form for form, nbytes in forms.items() if nbytes <= _MASK_BYTES]

    def forward(self, bucket: Bucket, form: Form, write_slots: tuple[Tensor, Tensor]) -> FlashInferForward:
        return self._attends(write_slots, [[parts.planned(bucket, form)] for parts in self._parts_of(bucket)])

    def plan(self, rows: Sequence[Row], bucket: Bucket, form: Form, half: int) -> None:
        layouts = {span: lay_out(rows, self._tables.within(span), form, span) for span in self._kv.kinds.spans}
        for kind, parts in zip(self._kv.kinds.each, self._parts_of(bucket), strict=True):
            parts.plan(layouts[kind.span], form, half)

    def _parts_of(self, bucket: Bucket) -> list[_Parts]:
        parts = self._parts.get(bucket)
        if parts is None:
            each = zip(self._memories, self._kv.kinds.each, strict=True)
            parts = [memories.parts(self._library, self._kv, kind, bucket.rows + 1) for memories, kind in each]
            self._parts[bucket] = parts
        return parts


def _mask(rows: PagedRows) -> Any:
    assert rows.mask is not None, "a masked part has masked rows"
    return rows.mask


def _sent(upload: Upload, half: int, array: Any) -> Tensor:
    upload.host(half)[: len(array)] = array
    return upload.send(half, len(array))
