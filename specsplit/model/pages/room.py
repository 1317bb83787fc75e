"""How many KV pages a model gets where nobody says it: as many as a share of the memory holds that is free of its device."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from specsplit.errors import LoadError
from specsplit.model.pages.geometry import Geometry
from specsplit.model.pages.windows import WindowTokens, window_pages
from specsplit.model.tensors.device import free_bytes

_log = logging.getLogger(__name__)

_LEAST_TOKENS: Final = 256
GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """KV takes this share of what is free once the weights are there."""

    share: float
    sessions: int
    """Sessions at once: more than as many texts of the whole context has no use."""
    weights: int = 1
    """How often the weights are held at once, at most."""
    free: Callable[[torch.device], int] = free_bytes
    """Bytes that are free of a device."""

    def room(self, device: torch.device, weight_bytes: int, state_bytes: int) -> int:
        """Bytes for KV, beside what has still to come: `state_bytes` of recurrent layers for each session, and other weights."""
        coming = (self.sessions + 1) * state_bytes + (self.weights - 1) * weight_bytes
        return max(0, int(self.share * (self.free(device) - coming)))

    def tell(self, tokens: int, nbytes: int, device: torch.device) -> None:
        """Say in the log what KV has got of a device."""
        _log.info(
            "KV has room for %d tokens, %.2f GiB, since kv_tokens is not set (kv_share = %g); %.2f GiB of %s are left for CUDA graphs and "
            "what steps compute",
            *(tokens, nbytes / GIB, self.share, self.free(device) / GIB, device),
        )


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of a device that KV may take."""

    nbytes: int
    most_tokens: int
    """Tokens beyond which more room has no use."""

    def pages(self, geometry: Geometry, page_size: int, itemsize: int, window_tokens: WindowTokens | None) -> int:
        """Pages that there is room for, window pages beside them counted. Raises LoadError if these are too few to serve anything."""
        most = -(-self.most_tokens // page_size)
        sizes = range(most + 1)
        found = (
            bisect_right(sizes, self.nbytes, key=lambda n: kv_bytes(geometry, n, page_size, itemsize, window_tokens))
            - 1
        )
        if found * page_size < min(_LEAST_TOKENS, self.most_tokens):
            raise LoadError(
                f"kv_share leaves {self.nbytes / GIB:.2f} GiB of the device for KV, which hold {max(0, found) * page_size} tokens, "
                f"expected {_LEAST_TOKENS} at least: stop what else has memory there, raise kv_share, or set kv_tokens"
            )
        return found


def kv_bytes(
    geometry: Geometry, num_pages: int, page_size: int, itemsize: int, window_tokens: WindowTokens | None
) -> int:
    """Bytes of the KV of so many pages and their window pages, and of one spare page of both."""
    windows = window_pages(geometry, num_pages, page_size, window_tokens)
    total = 0
    for layer in geometry.layers:
        within = windows is not None and layer.span.size is not None
        slots = ((windows or 0) if within else num_pages) * page_size + page_size
        total += slots * sum(heads * width for heads, width in layer.kept) * itemsize
    return total
