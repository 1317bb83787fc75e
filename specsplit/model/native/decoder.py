"""A decoder layer of Llama and its descendants around its attention, as two calls of kernels in C.

T   tokens      W   width of a hidden state      H, K   query heads, KV heads      D   width of a head
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from specsplit.model.native.library import library
from specsplit.model.native.low_rank import LowRankKernel, Tiles
from specsplit.model.native.weights import GatedWeights, Weights, WeightsStruct, checked


class Norm(NamedTuple):
    """A root mean square norm."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True)
class Heads:
    """What becomes of a hidden state before attention."""

    count: int
    """H"""
    kv_count: int
    """K"""
    width: int
    """D"""
    of_queries: Norm | None
    of_keys: Norm | None
    """Norms of each head, before it is rotated."""


class Products(NamedTuple):
    """The weights of a layer."""

    projections: Weights
    """W to (H + 2 K) D: queries, keys, values."""
    output: Weights
    """H D to W."""
    mlp: GatedWeights


class Adapted(NamedTuple):
    """What adapters add to the products of a layer; None: nothing."""

    queries: LowRankKernel | None
    keys: LowRankKernel | None
    values: LowRankKernel | None
    output: LowRankKernel | None
    gate: LowRankKernel | None
    up: LowRankKernel | None
    down: LowRankKernel | None

    @property
    def adapters(self) -> int:
        """The highest number of an adapter that all of them know."""
        return min((kernel.count for kernel in self if kernel is not None), default=0)


class _Adapted(ctypes.Structure):
    """`struct adapted` of decoder.c"""

    _fields_ = tuple((name, ctypes.c_void_p) for name in Adapted._fields)


class _Norm(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("width", "heads", "kv_heads", "head_width")),
        *((name, _Norm) for name in ("before_attention", "of_queries", "of_keys", "before_mlp")),
        *((name, WeightsStruct) for name in ("projections", "output", "gate", "up", "down")),
    )


class DecoderKernel:
    """One layer's weights, and what is computed with them."""

    def __init__(self, heads: Heads, before_attention: Norm, before_mlp: Norm, products: Products) -> None:
        """All in float32, on the CPU. Raises LoadError where there are no kernels, and ValueError for what does not fit."""
        _check(heads, before_attention, before_mlp, products)
        self._kernels: Final = library()
        self._kept: Final = heads, before_attention, before_mlp, products  # what the addresses below are of
        norms = (before_attention, heads.of_queries, heads.of_keys, before_mlp)
        self._layer: Final = _Layer(
            products.projections.into,
            heads.count,
            heads.kv_count,
            heads.width,
            *(_Norm() if norm is None else _Norm(norm.weight.data_ptr(), norm.epsilon) for norm in norms),
            *(weights.struct for weights in (products.projections, products.output, *products.mlp)),
        )
        self._reference: Final = ctypes.byref(self._layer)
        self._heads: Final = heads.count + 2 * heads.kv_count, heads.width
        self._inside: Final = products.mlp.gate.out
        self._adapted = Adapted(*(None,) * len(Adapted._fields))
        self._tables = _Adapted()
        self.sizes: Final = (
            self._layer.width,
            heads.count,
            heads.kv_count,
            heads.width,
            self._inside,
            *(None if norm is None else norm.epsilon for norm in norms),
        )
        """W, H, K, D, the width inside of the MLP, and epsilons of norms, where there is one."""

    @property
    def tensors(self) -> list[Tensor]:
        """All that the kernels read of the layer."""
        heads, first, second, (projections, output, mlp) = self._kept
        norms = (first, heads.of_queries, heads.of_keys, second)
        products = (projections.tensors, output.tensors, mlp.tensors)
        return [*(norm.weight for norm in norms if norm is not None), *chain.from_iterable(products)]

    def adapt(self, adapted: Adapted) -> None:
        """Have adapters add this to the rows of tiles. Raises ValueError for what does not fit."""
        width, heads, kv_heads, inside = (
            self._layer.width,
            self._layer.heads * self._heads[1],
            self._layer.kv_heads * self._heads[1],
            self._inside,
        )
        shapes = (
            (width, heads),
            (width, kv_heads),
            (width, kv_heads),
            (heads, width),
            (width, inside),
            (width, inside),
            (inside, width),
        )
        for name, kernel, shape in zip(Adapted._fields, adapted, shapes, strict=True):
            if kernel is not None and (kernel.into, kernel.out) != shape:
                raise ValueError(f"adapters of {name} go from {kernel.into} to {kernel.out}, expected {shape}")
        self._adapted = adapted
        self._tables = _Adapted(*(None if kernel is None else kernel.address for kernel in adapted))

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor, tiles: Tiles | None = None) -> Tensor:
        """Rotated queries and keys, and values, [T, H + 2 K, D], of hidden states [1, T, W]; cos and sin [1, T, D].

        tiles: of those tokens that adapters are for. Raises ValueError for another type or width, or tiles that do not fit.
        """
        width = self._layer.width
        tokens = hidden.numel() // width
        hidden, cos, sin = (
            checked(each, tokens, n) for each, n in ((hidden, width), (cos, self._heads[1]), (sin, self._heads[1]))
        )
        normed = torch.empty(tokens, width, dtype=torch.float32)
        out = torch.empty(tokens, *self._heads, dtype=torch.float32)
        addresses = (each.data_ptr() for each in (hidden, cos, sin, normed, out))
        self._kernels.project(*self._of(tiles, tokens), tokens, *addresses, torch.get_num_threads())
        return out

    def finish(self, hidden: Tensor, seen: Tensor, tiles: Tiles | None = None) -> Tensor:
        """The layer's hidden states [1, T, W], of those that it reads and of what its heads have seen [1, T, H, D].

        tiles: of those tokens that adapters are for. Raises ValueError for another type or width, or tiles that do not fit.
        """
        width = self._layer.width
        tokens = hidden.numel() // width
        hidden, seen = checked(hidden, tokens, width), checked(seen, tokens * self._layer.heads, self._heads[1])
        normed = torch.empty(tokens, width, dtype=torch.float32)
        gated = torch.empty(tokens, self._inside, dtype=torch.float32)
        lifted = gated if tiles is None else torch.empty_like(gated)
        out = torch.empty_like(hidden)
        addresses = (each.data_ptr() for each in (hidden, seen, normed, gated, lifted, out))
        self._kernels.finish(*self._of(tiles, tokens), tokens, *addresses, torch.get_num_threads())
        return out

    def _of(self, tiles: Tiles | None, tokens: int) -> tuple[Any, ...]:
        """What the kernels read of the layer, and of rows that have adapters."""
        if tiles is None:
            return self._reference, None, None, 0
        tiles.check(self._adapted.adapters, tokens)
        return self._reference, ctypes.addressof(self._tables), tiles.address, tiles.count


def _check(heads: Heads, before_attention: Norm, before_mlp: Norm, products: Products) -> None:
    """Raise ValueError unless all is as wide as what it is used with: the kernels do not look."""
    projections, output, mlp = products
    width = projections.into
    norms = (
        (before_attention, width),
        (before_mlp, width),
        (heads.of_queries, heads.width),
        (heads.of_keys, heads.width),
    )
    fits = (
        projections.out == (heads.count + 2 * heads.kv_count) * heads.width,
        output.into == heads.count * heads.width,
        output.out == mlp.down.out == mlp.gate.into == width,
        mlp.fit,
        all(norm is None or norm.weight.shape == (numbers,) for norm, numbers in norms),
    )
    if not all(fits):
        raise ValueError("the parts of a decoder layer do not fit one another")
