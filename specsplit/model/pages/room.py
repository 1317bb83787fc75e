"""How many KV pages a model gets where nobody says it: as many as a share of the memory holds that is free of its device."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol

import torch

from specsplit.errors import LoadError
from specsplit.model.pages.geometry import Geometry
from specsplit.model.pages.windows import WindowTokens, window_pages
from specsplit.model.tensors.device import free_bytes

_log = logging.getLogger(__name__)

_LEAST_TOKENS: Final = 256
GIB: Final = 1 << 30
Assemble = Callable[[Sequence[int]], Sequence[Sequence[int]]]
"""Gives everybody's numbers, by rank."""


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
    drafts: int = 0
    """Drafted tokens that a session keeps beside its text, at most."""

    def room(self, device: torch.device, weight_bytes: int, state_bytes: int) -> int:
        """Bytes for KV, beside what has still to come: `state_bytes` of recurrent layers for each session, and other weights."""
        coming = (self.sessions + 1) * state_bytes + (self.weights - 1) * weight_bytes
        return max(0, int(self.share * (self.free(device) - coming)))

    def tell(self, tokens: int, nbytes: int, device: torch.device) -> None:
        """Say in the log what KV has got of a device."""
        _log.info(
            "KV has room for %d tokens, %.2f GiB, since kv_tokens is not set (kv_share = %g); %.2f GiB of %s are left for CUDA graphs and "
            "what forwards compute",
            *(tokens, nbytes / GIB, self.share, self.free(device) / GIB, device),
        )


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of a device that KV may take."""

    nbytes: int
    most_tokens: int
    """Tokens beyond which more room has no use."""

    def pages(
        self,
        geometry: Geometry,
        page_size: int,
        itemsize: int,
        window_tokens: WindowTokens | None = None,
        beside: int = 0,
    ) -> int:
        """Pages that there is room for, window pages beside them counted, and `beside` bytes that are kept of a token with its KV.

        Raises LoadError if these are too few to serve anything.
        """
        most = -(-self.most_tokens // page_size)

        def nbytes(pages: int) -> int:
            kept = kv_bytes(geometry, pages, page_size, itemsize, window_tokens)
            return kept + beside * (pages + 1) * page_size

        found = bisect_right(range(most + 1), self.nbytes, key=nbytes) - 1
        if found * page_size < min(_LEAST_TOKENS, self.most_tokens):
            raise LoadError(
                f"kv_share leaves {self.nbytes / GIB:.2f} GiB of the device for KV, which hold {max(0, found) * page_size} tokens, "
                f"expected {_LEAST_TOKENS} at least: stop what else has memory there, raise kv_share, or set kv_tokens"
            )
        return found


class RoomSettings(Protocol):
    """What the settings of a verifier and those of a drafter say of the room for KV."""

    host_kv_tokens: ClassVar[int]
    device_kv_share: ClassVar[float]

    @property
    def device(self) -> str: ...
    @property
    def kv_tokens(self) -> int | None: ...
    @property
    def kv_share(self) -> float | None: ...
    @property
    def max_sessions(self) -> int: ...
    @property
    def weights_dir(self) -> Path | None: ...


def kv_room(settings: RoomSettings, page_size: int, drafts: int = 0) -> int | MemoryShare:
    """Pages of KV that a service is told to have, or the share of its GPU's memory that they take. `drafts`: as in `MemoryShare`."""
    if settings.kv_tokens is None and torch.device(settings.device).type == "cuda":
        weights = 1 if settings.weights_dir is None else 2  # other weights are read beside those that are served
        return MemoryShare(settings.kv_share or settings.device_kv_share, settings.max_sessions, weights, drafts=drafts)
    return (settings.kv_tokens or settings.host_kv_tokens) // page_size


def room_of(
    num_pages: int | MemoryShare,
    device: torch.device,
    assemble: Assemble,
    *,
    weight_bytes: int,
    max_context: int,
    state_bytes: int = 0,
) -> int | Room:
    """The pages of a model's KV, or the least memory that any rank or process has for them.

    Waits for all of those, by `assemble`. Raises what that does.
    """
    if isinstance(num_pages, int):
        assemble([0])
        return num_pages
    own = num_pages.room(device, weight_bytes, state_bytes)
    least = min(nbytes for (nbytes,) in assemble([own]))
    return Room(least, num_pages.sessions * (max_context + num_pages.drafts))


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
