"""Root mean square norm (arXiv 1910.07467) in one kernel, of a sum too."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from specsplit.model.layers.kernels.elementwise import WIDEST, rms_norm
from specsplit.model.layers.parts import NormParts


class FusedNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.epsilon: Final = eps

    @classmethod
    def like(cls, module: nn.Module) -> FusedNorm | None:
        """What may stand for a norm of transformers'; None: this is none. Whether it does the same is not looked at."""
        parts = NormParts.of(module)
        return None if parts is None or len(parts.weight) > WIDEST else cls(*parts)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., n] -> [..., n]"""
        return rms_norm(hidden, self.weight, self.epsilon)[0]

    def of_sum(self, hidden: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """[..., n] twice -> the norm of their sum, and their sum"""
        return rms_norm(hidden, self.weight, self.epsilon, added)
