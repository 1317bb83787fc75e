"""Latent attention (MLA) by FlashInfer: all heads attend to one key of 512 + 64 numbers, of which the first 512 are the value.

The kernels that there are for it know the causal mask and no other, so a tree's nodes are rows of their own, which list the tokens of
their paths; the whole pages in front of the tree are attended to by all of them at once, and the two are merged as elsewhere.

Of 0.6.13: `BatchMLAPagedAttentionWrapper` of mla/_core.py, its kernels for these widths and 16-bit types ready-made (aot.py), a row without
tokens gives 0 and log 0 (`write_empty_o` of attention/mla.cuh), and a plan has room for 16,384 tiles and does not look whether they are
more (`MLAPlan` of attention/scheduler.cuh).
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from specsplit.model.attention.flashinfer.forward import Library, Paged, PagedKV
from specsplit.model.attention.flashinfer.part import EagerPart
from specsplit.model.attention.flashinfer.plan import PagedRows
from specsplit.model.pages.geometry import ALL, Layer

_LATENT: Final = 512
"""Numbers of a latent."""
_SHARED: Final = 64
"""Numbers of the part that is rotated."""
_TILE: Final = 64
"""Queries of a tile, each counted for every head, at least."""
_MOST_TILES: Final = 16_384 - 1024
"""What a plan has room for, less those that are added where long rows are cut up."""


class LatentPart(EagerPart):
    """One wrapper for layers that keep latents (a Part)."""

    def __init__(self, library: Library, kv: PagedKV, kind: Layer, page_size: int, *, causal: bool = False) -> None:
        """page_size: that of the rows that it is told of."""
        super().__init__(library, kv, kind, causal=causal)
        self._page_size: Final = page_size
        self._latents: Final = kv.latents(kind, page_size)
        self._scaling: float = kind.key_width**-0.5
        """What it was planned with: that of the latest forward, since all layers of a model have the same."""
        self._latest: tuple[PagedRows, Paged] | None = None

    def run(self, layer: int, query: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        """Attend with query [T, H, 576] -> [T, H, 512], and log2 of the sum of its weights, float32 [T, H]."""
        scale: float = query.shape[2] ** -0.5 if scaling is None else scaling
        if scale != self._scaling and self._latest is not None:
            self._scaling = scale
            self._told(*self._latest)
        out = torch.empty(*query.shape[:2], _LATENT, dtype=query.dtype, device=query.device)
        latents, shared = self._latents[layer]
        return self._wrapper.run(query[..., :_LATENT], query[..., _LATENT:], latents, shared, out=out, return_lse=True)

    def _made(self, library: Library) -> Any:
        return library.BatchMLAPagedAttentionWrapper(self._kv.workspace(), backend="fa2")

    def _tell(self, rows: PagedRows, paged: Paged) -> None:
        self._check(rows)
        self._latest = rows, paged
        self._wrapper.plan(
            paged.qo_indptr,
            paged.kv_indptr,
            paged.indices,
            paged.lengths,
            self._kind.num_heads,
            _LATENT,
            _SHARED,
            self._page_size,
            self._causal,
            self._scaling,
            self._kv.dtype,
            self._kv.dtype,
        )

    def _check(self, rows: PagedRows) -> None:
        """Raise ValueError where the package would write beyond its plan."""
        tokens = int(rows.qo_indptr[-1])
        tiles = tokens * self._kind.num_heads // _TILE + len(rows.lengths)
        if tiles > _MOST_TILES:
            raise ValueError(
                f"a forward of {tokens} tokens by {self._kind.num_heads} heads over latents takes {tiles} tiles, and FlashInfer has "
                f"{_MOST_TILES}: set step_token_budget lower"
            )


def unserved_latents(layer: Layer, *, narrow: bool) -> str | None:
    """What a layer that keeps latents has that is not served. narrow: it keeps them in 8 bits."""
    if (layer.kv_heads, layer.key_width, layer.value_width) != (1, _LATENT + _SHARED, _LATENT):
        own = layer.key_width - layer.value_width
        return f"keeps latents of {layer.value_width} + {own} numbers, and it takes those of {_LATENT} + {_SHARED}"
    if layer.span != ALL or not layer.plain:
        return (
            "keeps latents of which it sees a window or chunks, or has a soft cap or sinks, and it takes none of these"
        )
    if narrow:
        return "keeps latents, and it takes those of 16 bits alone; set kv_cache_dtype = auto"
    return None
