"""Linear layers whose weights lie as the kernels that multiply them read them.

`torch.nn.functional.linear` lays the weights out anew in every call that has few rows, which is every step of a verifier. Packed
once, a call takes half the time (docs/adr/0032) and less (docs/adr/0040).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from specsplit.model.layers.cpu.onednn import OneDnnWeights
from specsplit.model.native import library
from specsplit.model.native.weights import Weights

_ONEDNN: Final = (torch.float32, torch.bfloat16)
"""Types that it has kernels for."""


class _Packed(Protocol):
    @property
    def tensors(self) -> list[Tensor]:
        """What was laid out anew."""
        ...

    def product(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out], for any number of rows, none included."""
        ...


def native_weights(linear: nn.Module) -> Weights | None:
    """Weights of a linear layer as kernels in C read them; None: there are no kernels for it."""
    joined = _joined([linear])
    return Weights(*joined) if joined is not None and _native(joined[0]) else None


def _native(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and library.obstacle() is None


def _joined(modules: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None] | None:
    """Weight and bias of linear layers with their outputs side by side; None: they are something else, or not on the CPU."""
    linear = [each for each in modules if type(each) is nn.Linear and each.weight.device.type == "cpu"]
    biases: list[Tensor] = [each.bias for each in linear if each.bias is not None]
    if len(linear) < len(modules) or len(biases) not in (0, len(linear)):
        return None
    return torch.cat([each.weight for each in linear]), torch.cat(biases) if biases else None


class PackedLinear(nn.Module):
    """y = x W^T + b, for x [..., in] of any number of rows, none included."""

    def __init__(self, packed: _Packed, like: Tensor, bias: Tensor | None) -> None:
        """like [out, in] and bias [out] were packed."""
        super().__init__()
        self.weight = torch.empty(like.shape, dtype=like.dtype, device="meta")  # some models ask for its type
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)  # some models tie another to it
        self.packed: Final = packed

    @classmethod
    def like(cls, *modules: nn.Module) -> PackedLinear | None:
        """What may stand for linear layers that read the same, with their outputs side by side; None: for these nothing may.

        Raises RuntimeError if the processor has no kernels for the type.
        """
        joined = _joined(modules)
        if joined is None:
            return None
        weight, bias = joined
        if _native(weight):
            return cls(Weights(weight, bias), weight, bias)
        if weight.dtype in _ONEDNN and torch.backends.mkldnn.is_available():
            return cls(OneDnnWeights(weight, bias), weight, bias)
        return None

    @property
    def packed_tensors(self) -> list[Tensor]:
        """See `specsplit.model.layers.weights`."""
        return self.packed.tensors

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        return self.packed.product(rows)
