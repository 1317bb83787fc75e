"""How much memory FlashInfer's kernels need for the parts of rows that they share out, as the package reckons (`scheduler.cuh` of 0.6.13).

A row is cut into tiles of queries and, if it is long, into parts of its keys; each tile of each part leaves its sums, float32, for every
query head. There are no more of them than the device runs at once, but in graph mode for as many as the rows of a bucket may have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from specsplit.model.attention.support import refusing
from specsplit.model.pages.buckets import Bucket, Buckets

_LEAST: Final = 384 << 20
"""Enough for most: with 132 processors, 8 query heads of 128 for each KV head take 140 MB."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of one layer's attention, and what runs them."""

    query: int
    kv: int
    width: int
    processors: int
    """Streaming multiprocessors (SMs) of the device."""

    def eager_bytes(self) -> int:
        """What forwards need that are planned as they come."""
        return self._bytes(self._at_once, self._tile(128))

    def captured_bytes(self, bucket: Bucket) -> int:
        """What captured forwards of this size need, whose padding is a row of its own."""
        group, rows = self.query // self.kv, bucket.rows + 1
        tile = self._tile((bucket.tokens - rows + 1) * group)
        tiles = -(-bucket.tokens * group // tile) + rows - 1
        return self._bytes(max(self._at_once, tiles), tile)

    @property
    def _at_once(self) -> int:
        return 2 * self.processors // self.kv

    def _tile(self, queries: int) -> int:
        """Size of a query tile for rows of so many queries, each counted for all query heads of a KV head (`FA2DetermineCtaTileQ`)."""
        if queries > 64 and self.width < 256:
            return 128
        return 64 if queries > 16 else 16

    def _bytes(self, parts: int, tile: int) -> int:
        return self.query * parts * tile * (self.width + 1) * 4


class Workspaces:
    """The memory of each device's wrappers, which share it: what is in there is of no use once the kernel that wrote it has been merged.

    It is theirs, and goes with the last of them.
    """

    def __init__(self, least: int = _LEAST) -> None:
        self._least: Final = least
        self._held: Final = WeakValueDictionary[torch.device, Tensor]()
        """The latest of each device, while somebody uses it."""

    def of(self, device: torch.device, heads: Heads, buckets: Buckets | None = None) -> Tensor:
        """Memory for eager forwards, or for all captured ones of these sizes. Raises LoadError if there is none."""
        nbytes = heads.eager_bytes() if buckets is None else max(map(heads.captured_bytes, buckets))
        held = self._held.get(device)
        if held is None or len(held) < nbytes:
            nbytes = max(nbytes, self._least)
            with refusing(
                f"attention = flashinfer needs {nbytes >> 20} MiB beside the KV cache (attention = torch does without them; "
                "lower cuda_graph_tokens and cuda_graph_rows make it less)"
            ):
                held = self._held[device] = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return held


WORKSPACES: Final = Workspaces()


def processors(device: torch.device) -> int:
    """Count those of a GPU; 0: it is none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
