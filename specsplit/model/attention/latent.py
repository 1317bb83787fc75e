"""Multi-head latent attention (arXiv 2405.04434) over what it keeps of a token: a latent, from which no head's key or value is made.

transformers makes them, in a method `expand_kv` that all modules of this kind have: of a latent c and a part r that all heads share, head
h has the key [c A_h, r] and the value c B_h. A query [p, s] has with that key the score p . (c A_h) + s . r = [p A_h^T, s] . [c, r], and
what it sees of values, summed up, is the sum of latents times B_h. So queries are multiplied by A_h^T and outputs by B_h, and all heads
attend to the one key [c, r], of which c is the value too.

    T   tokens      H   heads      R, P   width of a latent, and of the shared part
    N, V            width of the rest of a head's key, and of its value
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from specsplit.errors import LoadError
from specsplit.model.attention.interface import AROUND, NAME, TOLD, ForwardBatch

EXPAND: Final = "expand_kv"
"""What the method is called."""
_TRIED: Final = 8
"""Latents of chance that have to give the heads that they should."""
_ALIKE: Final = 0.1
"""What those may be off by, of the largest number: weights of 8 bits may be multiplied by latents that are rounded to as many."""


class LatentAttention:
    """Stands in for `expand_kv` of one attention module."""

    def __init__(self, module: nn.Module) -> None:
        self._module: Final[Any] = module
        self._expand: Final = self._module.expand_kv
        self._seen: tuple[Tensor, Tensor] | None = None
        """[1, R] and [1, P] of a token; None: it was not called yet."""
        self._keys: Tensor = torch.empty(0)
        """[H, N, R], of all heads A_h^T"""
        self._values: Tensor = torch.empty(0)
        """[H, R, V], of all heads B_h"""
        self.absorbs: bool = False
        """Whether queries and outputs are multiplied in the place of latents."""
        setattr(module, EXPAND, self)

    def __call__(self, latent: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Latent [1, 1, T, R] and shared part [1, 1, T, P] -> the key and the value that its heads attend to.

        Once it absorbs, the key is [1, 1, T, R + P] and the value the first R of it, unless the model runs attention of its own.
        """
        if self.absorbs and self._module.config._attn_implementation in (NAME, TOLD):
            key = torch.cat((latent, shared), dim=-1)
            return key, key[..., : latent.shape[-1]]
        if self._seen is None:
            self._seen = latent[0, 0, :1], shared[0, 0, :1]
        return self._expand(latent, shared)

    @torch.inference_mode()
    def absorb(self) -> None:
        """Have heads attend to latents from now on. The module must have been run. Raises LoadError if it makes heads in some other way."""
        if self._seen is None:
            raise LoadError(f"{type(self._module).__name__} does not attend to what its {EXPAND} gives")
        latent, shared = self._seen
        identity = torch.eye(latent.shape[1], dtype=latent.dtype, device=latent.device)
        keys, values = self._heads(identity, shared.new_zeros(len(identity), shared.shape[1]))
        self._keys = keys[..., : keys.shape[2] - shared.shape[1]].transpose(1, 2).contiguous()
        self._values = values.contiguous()
        self._check(*self._seen)
        self.absorbs = True
        setattr(self._module, AROUND, self)

    @property
    def packed_tensors(self) -> list[Tensor]:
        """See `specsplit.model.layers.weights`."""
        return [self._keys, self._values] if self.absorbs else []

    def leave(self) -> None:
        """Give the module its own method back."""
        setattr(self._module, EXPAND, self._expand)
        vars(self._module).pop(AROUND, None)

    def attend(
        self,
        forward_batch: ForwardBatch,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        extras: dict[str, Any],
    ) -> Tensor:
        """Query [1, H, T, N + P] and what it gave for key and value -> [1, T, H, V]."""
        inner, shared = query[0].tensor_split([self._keys.shape[1]], dim=-1)
        absorbed = torch.cat((inner @ self._keys, shared), dim=-1).unsqueeze(0)
        scaling = query.shape[3] ** -0.5 if scaling is None else scaling
        latents = forward_batch.attend(layer, absorbed, key, value, scaling, extras)[0]  # [T, H, R]
        return (latents.transpose(0, 1) @ self._values).transpose(0, 1).unsqueeze(0)

    def _check(self, latent: Tensor, shared: Tensor) -> None:
        """Raise LoadError unless it makes heads of latents and shared parts, of types like these, as it is said above."""
        chance = torch.Generator().manual_seed(0)
        latent, shared = (torch.randn(_TRIED, each.shape[1], generator=chance).to(each) for each in (latent, shared))
        keys = torch.cat((latent @ self._keys.transpose(1, 2), shared.expand(len(self._keys), -1, -1)), dim=-1)
        for found, expected in zip(self._heads(latent, shared), (keys, latent @ self._values), strict=True):
            if found.shape != expected.shape or not (found - expected).abs().max() <= _ALIKE * found.abs().max():
                raise LoadError(f"{type(self._module).__name__} makes heads of latents in some other way")

    def _heads(self, latent: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """[n, R] and [n, P] -> keys [H, n, N + P] and values [H, n, V], as the module makes them."""
        keys, values = self._expand(latent[None, None], shared[None, None])
        return keys[0], values[0]


def latent_attention(model: nn.Module) -> list[LatentAttention]:
    """Stand in for all modules of a model that make heads of latents. Nothing is absorbed yet."""
    return [LatentAttention(module) for module in model.modules() if callable(getattr(module, EXPAND, None))]
