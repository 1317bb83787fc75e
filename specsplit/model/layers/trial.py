"""Whether a module gives the numbers of the one that it is to stand for: both are run on a few rows of chance, with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from specsplit.model.attention.interface import Place
from specsplit.model.layers.kit import Like
from specsplit.model.tensors.transfer import on_device

_TOLERANCE: Final = 1e-4
"""Largest difference in float32, as a share of the largest number."""
_TOKENS: Final = 5
_SCALES: Final = (1e-3, 1, 30, 1000)
"""Factors for the rows that are tried: large ones show what is cut off above a limit, small ones what is added to a square."""
_SHORT_CONTEXT: Final = 2048

Call = Callable[[nn.Module, Tensor], Tensor]
"""Calls a module with rows [1, T, width], as whoever has it does."""


def gives_the_same(
    module: nn.Module, replacement: nn.Module, like: Like, call: Call, width: int | None
) -> tuple[bool, bool]:
    """Whether both give the same numbers in float32; and whether that says anything of others of the kind, as zeros do not.

    width: of the rows that they read; None: the first parameter says it.
    """
    first = next(module.parameters())
    exact = first.dtype == torch.float32
    one = module if exact else deepcopy(module).float()
    other = replacement if exact else like(one)
    drawn = torch.randn(1, _TOKENS, width or first.shape[-1], generator=torch.Generator().manual_seed(0))
    rows = on_device(drawn.numpy(), first.device)
    if other is None:
        return False, True
    asked = [at * rows for at in _SCALES]
    own = [call(one, each) for each in asked]
    agree = all(_close(found, call(other, each)) for found, each in zip(own, asked, strict=True))
    return agree, any(
        bool(found.any()) and not torch.equal(found, each) for found, each in zip(own, asked, strict=True)
    )


def _close(own: Tensor, other: Tensor) -> bool:
    """Whether all numbers are the same but for rounding; NaN is not."""
    if own.shape != other.shape or own.dtype != other.dtype:
        return False
    return bool((own - other).abs().max() <= _TOLERANCE * own.abs().max())


def called(module: nn.Module, rows: Tensor) -> Tensor:
    return module(rows)


class Passing:
    """Calls a decoder layer as a model does, at the first positions of the context and at the last."""

    def __init__(self, rotary: nn.Module) -> None:
        """`rotary` makes cos and sin of positions."""
        self.rotary: Final = rotary
        self._context: Final = int(getattr(rotary, "max_seq_len_cached", _SHORT_CONTEXT))

    def __call__(self, module: nn.Module, rows: Tensor) -> Tensor:
        positions = torch.arange(rows.shape[1], device=rows.device)
        positions[rows.shape[1] // 2 :] += self._context - rows.shape[1]
        embeddings = self.rotary(rows, positions[None])
        return module(
            hidden_states=rows, position_embeddings=embeddings, attention_mask=None, forward_batch=Causal(rows.device)
        )


class Attending(Passing):
    """Calls an attention module as a decoder layer does."""

    def __call__(self, module: nn.Module, rows: Tensor) -> Tensor:
        return super().__call__(module, rows)[0]


class Causal:
    """A forward of one text whose KV is nowhere else (a ForwardBatch, and a StoringForward)."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._stored: Place | None = None

    def place(self, layer: int, shape: tuple[int, int]) -> Place:
        """Room for the tokens that are tried, last token first, so that nobody can pass over what slots say."""
        slots = torch.arange(_TOKENS, device=self._device).flip(0)
        keys, values = torch.zeros(2, _TOKENS, *shape, device=self._device)
        self._stored = Place(keys, values, slots)
        return self._stored

    def attend_stored(self, layer: int, query: Tensor, scaling: float | None) -> Tensor:
        """Attend to what was written there."""
        assert self._stored is not None, "place comes before"
        keys, values, slots = self._stored
        query, key, value = (each.transpose(0, 1).unsqueeze(0) for each in (query, keys[slots], values[slots]))
        return self.attend(layer, query, key, value, scaling, {})

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        ).transpose(1, 2)
