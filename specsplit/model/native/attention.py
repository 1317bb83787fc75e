"""The attention kernel in C: what it reads, and one call for a layer.

T   tokens in the batch      H, K   query heads, KV heads      D, V   width of keys, width of values
D and V are multiples of 8.

Q, L   new tokens of a row, tokens that it sees                E      the last of those L, which not every new token sees
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.native.library import library

_MANY: Final = 12
"""New tokens from which on a row's keys and values are laid out for them. With one row it pays from 8 on, with eight from 16."""


class SeenRow(NamedTuple):
    """New tokens of a row, and what they see."""

    start: int
    """The first of its queries, as an index into all of them."""
    slots: NDArray[np.int64]
    """[L] where the KV of what it sees is, in order."""
    sees: NDArray[np.bool_]
    """[Q, E] which of the last E tokens each new one sees, itself included."""


class _Row(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("start", "queries", "length", "tail")),
        ("slots", ctypes.c_void_p),
        ("sees", ctypes.c_void_p),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "key_width", "value_width")),
        *((name, ctypes.c_int64) for name in ("query_token", "query_head")),
        *((name, ctypes.c_int64) for name in ("key_slot", "key_head", "value_slot", "value_head")),
        ("scaling", ctypes.c_float),
    )


class SeenRows:
    """Rows of one forward, as layers that see the same read them."""

    def __init__(self, rows: Sequence[SeenRow]) -> None:
        self._kept: Final = [(np.ascontiguousarray(row.slots), np.ascontiguousarray(row.sees)) for row in rows]
        # what the addresses below are of
        made = [
            _Row(row.start, *sees.shape[:1], len(slots), sees.shape[1], slots.ctypes.data, sees.ctypes.data)
            for row, (slots, sees) in zip(rows, self._kept, strict=True)
        ]
        few, many = ([each for each in made if (each.queries >= _MANY) is long] for long in (False, True))
        self.few: Final = (_Row * len(few))(*few)
        """Rows of few new tokens."""
        self.most: Final = max((each.queries for each in few), default=0)
        """Q of the one with the most."""
        self.many: Final = (_Row * len(many))(*many)
        """Rows of many."""


class LayerKernel:
    """The kernel over the keys and values of one layer."""

    def __init__(self, heads: int, keys: Tensor, values: Tensor) -> None:
        """heads: H. Planes keys [slots, K, D] and values [slots, K, V], in float32 on the CPU, numbers of a head side by side.

        Raises LoadError where there is no kernel.
        """
        self._kernels: Final = library()
        self._planes: Final = keys, values
        self._addresses: Final = [plane.data_ptr() for plane in self._planes]
        (_, kv_heads, key_width), value_width = keys.shape, values.shape[2]
        self._layer: Final = _Layer(
            heads, kv_heads, key_width, value_width, 0, 0, *keys.stride()[:2], *values.stride()[:2]
        )
        self._reference: Final = ctypes.byref(self._layer)
        self._shape: Final = heads, value_width

    def attend(self, rows: SeenRows, query: Tensor, scaling: float, threads: int) -> Tensor:
        """Attend with query [T, H, D] -> [T, H, V], of which what belongs to none of the rows is left as it was found."""
        if query.stride(2) != 1:
            query = query.contiguous()
        layer = self._layer
        layer.query_token, layer.query_head, _ = query.stride()
        layer.scaling = scaling
        out = torch.empty(len(query), *self._shape, dtype=torch.float32)
        addresses = (query.data_ptr(), *self._addresses, out.data_ptr())
        if rows.few:
            work = torch.empty(self._kernels.working_numbers(self._reference, rows.most, threads), dtype=torch.float32)
            few = rows.few, len(rows.few), rows.most
            self._kernels.attend(self._reference, *few, *addresses, work.data_ptr(), threads)
        if rows.many:
            work = torch.empty(self._kernels.chunk_numbers(self._reference, threads), dtype=torch.float32)
            many = rows.many, len(rows.many)
            self._kernels.attend_chunks(self._reference, *many, *addresses, work.data_ptr(), threads)
        return out
