"""The gated MLP of Llama and its descendants: down(silu(gate(x)) * up(x))."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn
from torch.nn.functional import silu

from specsplit.model.layers.cpu.linear import PackedLinear, native_weights
from specsplit.model.layers.parts import MlpParts
from specsplit.model.native.weights import GatedWeights


def mlp_like(module: nn.Module) -> NativeMlp | GatedMlp | None:
    """What may stand for a module that is built of the same parts; None: this one is not. Whether it does the same is not looked at."""
    parts = MlpParts.of(module)
    return None if parts is None else NativeMlp.like(*parts) or GatedMlp.like(*parts)


class NativeMlp(nn.Module):
    """One call of a kernel in C."""

    def __init__(self, weights: GatedWeights) -> None:
        super().__init__()
        self.weights: Final = weights

    @classmethod
    def like(cls, gate: nn.Module, up: nn.Module, down: nn.Module) -> NativeMlp | None:
        """What may stand for gate, up and down; None: nothing, as where there are no kernels in C."""
        first, second, last = native_weights(gate), native_weights(up), native_weights(down)
        if first is None or second is None or last is None:
            return None
        weights = GatedWeights(first, second, last)
        return cls(weights) if weights.fit else None

    @property
    def packed_tensors(self) -> list[Tensor]:
        """See `specsplit.model.layers.weights`."""
        return self.weights.tensors

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., T, width] -> [..., T, width]"""
        return self.weights.product(hidden)


class GatedMlp(nn.Module):
    """Gate and up are one product: two small ones would take longer."""

    def __init__(self, gate_up: PackedLinear, down: PackedLinear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down

    @classmethod
    def like(cls, gate: nn.Module, up: nn.Module, down: nn.Module) -> GatedMlp | None:
        """What may stand for gate, up and down; None: nothing."""
        both, last = PackedLinear.like(gate, up), PackedLinear.like(down)
        return None if both is None or last is None else cls(both, last)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., T, width] -> [..., T, width]"""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(silu(gate).mul_(up))
