"""The gated MLP of Llama and its descendants: down(silu(gate(x)) * up(x))."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn
from torch.nn.functional import silu

from specsplit.model.layers.cpu.linear import PackedLinear

_GATE: Final = "gate_proj"
_UP: Final = "up_proj"
_DOWN: Final = "down_proj"


class GatedMlp(nn.Module):
    """Gate and up are one product: two small ones would take longer."""

    def __init__(self, gate_up: PackedLinear, down: PackedLinear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down

    @classmethod
    def like(cls, module: nn.Module) -> GatedMlp | None:
        """What may stand for a module that is built of the same parts; None: this one is not. Whether it does the same is not looked at."""
        parts = dict(module.named_children())
        if not {_GATE, _UP, _DOWN} <= set(parts) <= {_GATE, _UP, _DOWN, "act_fn"}:
            return None
        gate_up, down = PackedLinear.like(parts[_GATE], parts[_UP]), PackedLinear.like(parts[_DOWN])
        return None if gate_up is None or down is None else cls(gate_up, down)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., T, width] -> [..., T, width]"""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(silu(gate).mul_(up))
