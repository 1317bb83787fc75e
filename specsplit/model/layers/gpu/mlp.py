"""The gated MLP of Llama and its descendants, down(silu(gate(x)) * up(x)), in two products and one kernel."""

from __future__ import annotations

from torch import Tensor, nn

from specsplit.model.layers.gpu.linear import JoinedLinear
from specsplit.model.layers.kernels.elementwise import gated
from specsplit.model.layers.parts import MlpParts


class FusedMlp(nn.Module):
    """Gate and up are one product."""

    def __init__(self, gate_up: JoinedLinear, down: JoinedLinear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down

    @classmethod
    def like(cls, module: nn.Module) -> FusedMlp | None:
        """What may stand for a module that is built of the same parts; None: this one is not. Whether it does the same is not looked at."""
        parts = MlpParts.of(module)
        if parts is None:
            return None
        both, last = JoinedLinear.like(parts.gate, parts.up), JoinedLinear.like(parts.down)
        return None if both is None or last is None else cls(both, last)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., T, width] -> [..., T, width]"""
        return self.down(gated(self.gate_up(hidden)))
