"""Linear layers that read the same, as one product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class JoinedLinear(nn.Module):
    """y = x W^T + b, for x [..., in]; outputs of several layers side by side."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    def like(cls, *modules: nn.Module) -> JoinedLinear | None:
        """What may stand for linear layers that read the same; None: they are something else, or of several kinds."""
        layers = [each for each in modules if type(each) is nn.Linear]
        if len(layers) < len(modules) or len({(each.weight.dtype, each.weight.device) for each in layers}) != 1:
            return None
        if layers[0].weight.dtype not in _DTYPES or len({each.bias is None for each in layers}) != 1:
            return None
        return cls(_side_by_side([each.weight for each in layers]), _biases(layers))

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        return linear(rows, self.weight, self.bias)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """One of them alone is no copy."""
    return parts[0].detach() if len(parts) == 1 else torch.cat([each.detach() for each in parts])


def _biases(layers: Sequence[nn.Linear]) -> Tensor | None:
    biases = [each.bias for each in layers if each.bias is not None]
    return _side_by_side(biases) if biases else None
