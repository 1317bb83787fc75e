"""The front of an EAGLE-3 head: it makes one state of the hidden states of a feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor, nn

from specsplit.model.heads.eagle3_variant import Eagle3Variant


class Fusion(nn.Module):
    """fc of a feature, which is normed as a whole or state by state before it, if the variant says so.

    P-EAGLE: besides, the state of a token that has no feature, which is that of `mask_hidden`, a feature that was learnt.
    """

    def __init__(
        self,
        num_states: int,
        state_size: int,
        width: int,
        variant: Eagle3Variant,
        new_norm: Callable[[int], nn.Module],
        *,
        bias: bool = False,
    ) -> None:
        """num_states, state_size: of a feature. width: of what is made of it. new_norm: makes a norm of so many numbers. bias: of fc."""
        super().__init__()
        size = num_states * state_size
        self.num_states: Final = num_states
        self.fc = nn.Linear(size, width, bias=bias)
        self.input_norm = new_norm(size) if variant.norm_before_fc else None
        self.fc_norm = nn.ModuleList(new_norm(state_size) for _ in range(num_states)) if variant.fc_norm else None
        self.mask_hidden = None if variant.mask_token is None else nn.Parameter(torch.randn(1, 1, size))
        self._mask: Tensor | None = None

    def lay_mask(self, shape: Sequence[int]) -> None:
        """P-EAGLE: give `mask_hidden` the shape that a file has, which is [1, 1, n] or [1, n]; one of other numbers is left as it is."""
        if self.mask_hidden is not None and prod(shape) == self.mask_hidden.numel():
            self.mask_hidden = nn.Parameter(self.mask_hidden.detach().reshape(*shape))

    def forward(self, features: Tensor) -> Tensor:
        """features [..., num_states x state_size] -> [..., width]"""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = zip(self.fc_norm, features.chunk(self.num_states, dim=-1), strict=True)
            features = torch.cat([norm(part) for norm, part in parts], dim=-1)
        return self.fc(features)

    def of_projected(self, projected: Tensor) -> Tensor:
        """What is left to do for features [..., width] that were multiplied by the weight of fc elsewhere."""
        return projected if self.fc.bias is None else projected + self.fc.bias

    def train(self, mode: bool = True) -> Fusion:
        self._mask = None
        return super().train(mode)

    def mask(self) -> Tensor:
        """P-EAGLE: the state [width] of a token that has no feature. It is computed once, unless the head is trained."""
        if self.mask_hidden is None:
            raise ValueError("this head has no mask")
        if self._mask is not None:
            return self._mask
        mask: Tensor = self(self.mask_hidden.flatten())
        if not self.training:
            self._mask = mask
        return mask
