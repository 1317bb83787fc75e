"""Root mean square norm (arXiv 1910.07467) in four operations, in the place of the seven that its formula takes one by one."""

from __future__ import annotations

from math import sqrt
from typing import Final

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from specsplit.model.layers.parts import NormParts


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension, of float32.

    With n numbers in a row that is x / hypot(|x|, sqrt(n eps)) * (sqrt(n) weight).
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        count = len(weight)
        self.weight = weight  # some models ask for its type
        self.epsilon: Final = eps
        self._scaled = weight * sqrt(count)
        self._least = torch.tensor(sqrt(count * eps), dtype=weight.dtype)

    @classmethod
    def like(cls, module: nn.Module) -> RmsNorm | None:
        """What may stand for a norm of transformers'; None: this is none. Whether it does the same is not looked at."""
        parts = NormParts.of(module)
        if parts is None or parts.weight.dtype != torch.float32 or not parts.weight.is_cpu:
            return None
        return cls(*parts)

    @property
    def packed_tensors(self) -> list[Tensor]:
        """See `specsplit.model.layers.weights`."""
        return [self._scaled]

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., n] -> [..., n]"""
        return (hidden / vector_norm(hidden, dim=-1, keepdim=True).hypot_(self._least)).mul_(self._scaled)
