"""Weights as oneDNN's kernels read them. These are the operators that torch's own compiler calls on a CPU."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

_ROWS: Final = 16
"""The layout is chosen for about so many rows; it serves from 1 to hundreds about as well as one that is chosen for these."""
_SIZES: Final = (
    0,
    *range(1, 5),
    *range(6, 17, 2),
    *range(20, 33, 4),
    *range(40, 65, 8),
    96,
    128,
    160,
    192,
    *range(256, 513, 64),
)
"""Numbers of rows that there are kernels for. oneDNN makes one for every number that it meets, and keeps each, in half a megabyte."""
_READING: Final = 14
"""So many rows of a product take as long as reading the weights does: rather than more of them are added, there are two products."""
_LEAST: Final = 4 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 1
"""Fewer rows than these take longer than these do, where weights come from memory."""
_FAR: Final = 2**20
"""Bytes of weights that do: of fewer much may be in a cache."""


@lru_cache(1024)
def parts(count: int, least: int) -> tuple[tuple[int, int], ...]:
    """How so many rows are multiplied: one product after the other, of (rows, rows added to them), with `least` rows at least."""
    if not count:
        return ((0, 0),)
    above = bisect_left(_SIZES, max(count, least))
    missing = _SIZES[above] - count if above < len(_SIZES) else count
    if missing <= _READING:
        return ((count, missing),)
    below = _SIZES[above - 1]
    return (below, 0), *parts(count - below, least)


class OneDnnWeights:
    """A weight [out, in] and a bias [out] or none, laid out anew."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Raises RuntimeError if the processor has no kernels for the type."""
        self._bias: Final = bias
        self._least: Final = _LEAST if weight.nbytes >= _FAR else 1
        # Looked up here: a torch that was built without oneDNN has none of these.
        self._product: Final = torch.ops.mkldnn._linear_pointwise.default
        self._packed: Final[Tensor] = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)

    @property
    def tensors(self) -> list[Tensor]:
        """What was laid out anew, and the bias."""
        return [self._packed] if self._bias is None else [self._packed, self._bias]

    def product(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out], for any number of rows, none included."""
        if rows.dim() > 2 and len(rows) != 1:
            return self.product(rows.flatten(0, -2)).unflatten(0, rows.shape[:-1])
        split = parts(rows.shape[-2], self._least)
        if len(split) == 1:
            return self._multiplied(rows, *split[0])
        each = zip(rows.split([count for count, _ in split], dim=-2), split, strict=True)
        return torch.cat([self._multiplied(part, *sizes) for part, sizes in each], dim=-2)

    def _multiplied(self, rows: Tensor, count: int, missing: int) -> Tensor:
        """[..., count, in] -> [..., count, out], with so many rows added meanwhile."""
        if not missing:
            return self._product(rows, self._packed, self._bias, "none", [], "")
        padded = pad(rows, (0, 0, 0, missing))
        return self._product(padded, self._packed, self._bias, "none", [], "").narrow(-2, 0, count)
