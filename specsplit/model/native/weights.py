"""Weights in float32 as the kernels in C read them, and what is made with them alone.

T   rows      I, O   numbers of a row that goes in, and that comes out      M   numbers of a row inside of an MLP
"""

from __future__ import annotations

import ctypes
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specsplit.model.native.library import library


class WeightsStruct(ctypes.Structure):
    """`struct weights` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("panels", "bias")),
        *((name, ctypes.c_int64) for name in ("into", "out")),
    )


class Weights:
    """A weight [O, I] and a bias [O] or none, laid out anew."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take a weight and a bias in float32, on the CPU. Raises LoadError where there are no kernels."""
        self._kernels: Final = library()
        panel = self._kernels.panel_width()
        self.out, self.into = weight.shape
        missing = -self.out % panel
        self._panels: Final = pad(weight, (0, 0, 0, missing)).view(-1, panel, self.into).transpose(1, 2).contiguous()
        self._bias: Final = None if bias is None else pad(bias, (0, missing)).contiguous()
        address = None if self._bias is None else self._bias.data_ptr()
        self.struct: Final = WeightsStruct(self._panels.data_ptr(), address, self.into, self.out)
        self.reference: Final = ctypes.byref(self.struct)

    @property
    def tensors(self) -> list[Tensor]:
        """What was laid out anew."""
        return [self._panels] if self._bias is None else [self._panels, self._bias]

    def product(self, rows: Tensor) -> Tensor:
        """[..., I] -> [..., O]. Raises ValueError for rows of another type or width."""
        count = rows.numel() // self.into
        rows, out = checked(rows, count, self.into), torch.empty(*rows.shape[:-1], self.out, dtype=torch.float32)
        self._kernels.product(self.reference, count, rows.data_ptr(), out.data_ptr(), torch.get_num_threads())
        return out

    def rows(self, indices: Tensor) -> Tensor:
        """Rows [..., I] of the weight, by index [...]. Raises IndexError for one that it does not have."""
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < self.out:
            raise IndexError(f"rows {int(indices.min())} to {int(indices.max())} of a weight of {self.out}")
        panel = self._panels.shape[2]
        return self._panels[indices // panel, :, indices % panel]


def checked(rows: Tensor, count: int, width: int) -> Tensor:
    """So many rows [..., width] that lie one behind the other. Raises ValueError for another type, number or width."""
    right = rows.shape[-1] == width and rows.numel() == count * width
    if not right or rows.dtype != torch.float32 or rows.device.type != "cpu":
        said = f"{list(rows.shape)} {rows.dtype} on {rows.device}"
        raise ValueError(f"rows are {said}; the kernel takes {count} of {width} float32 on a CPU")
    return rows.contiguous()


class GatedWeights(NamedTuple):
    """The weights of a gated MLP: gate and up [M, I], down [O, M]."""

    gate: Weights
    up: Weights
    down: Weights

    @property
    def fit(self) -> bool:
        """Whether they are of these shapes."""
        return self.gate.into == self.up.into and self.gate.out == self.up.out == self.down.into

    @property
    def tensors(self) -> list[Tensor]:
        """What was laid out anew of all three."""
        return [tensor for weights in self for tensor in weights.tensors]

    def product(self, rows: Tensor) -> Tensor:
        """down(silu(gate(x)) up(x)), for x [..., I] -> [..., O]. Raises ValueError for rows of another type or width, or a misfit."""
        if not self.fit:
            raise ValueError("gate, up and down of a gated MLP do not fit one another")
        gate, up, down = self
        count = rows.numel() // gate.into
        rows = checked(rows, count, gate.into)
        gated = torch.empty(count, gate.out, dtype=torch.float32)
        out = torch.empty(*rows.shape[:-1], down.out, dtype=torch.float32)
        structs = gate.reference, up.reference, down.reference
        addresses = rows.data_ptr(), gated.data_ptr(), out.data_ptr()
        library().mlp(*structs, count, *addresses, torch.get_num_threads())
        return out
