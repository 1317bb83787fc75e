"""How the rows of a forward are picked, as tensors. Those of the sessions are made when sessions come and go, and not at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specsplit.sampling.filters import Filters
from specsplit.values import Sampling

_COLDEST: Final = 1e-20
"""Temperatures below this count as this: logits (below 1e18) divided by it are still finite, and any difference still decides."""


class SamplingBatch:
    """Sessions whose rows come in one forward."""

    def __init__(self, samplings: Sequence[Sampling], vocab_size: int, device: torch.device) -> None:
        self._samplings = samplings
        self._device = device
        temperatures = [max(sampling.temperature, _COLDEST) for sampling in samplings]
        self._temperatures = torch.tensor(temperatures, device=device)[:, None]
        self._filters = Filters.of(samplings, vocab_size, device)

    def rows(self, owners: Sequence[int]) -> SamplingRows:
        """Rows of a forward, of which number r is of the session owners[r]."""
        changed = [row for row, owner in enumerate(owners) if not self._samplings[owner].greedy]
        of_changed = self._index([owners[row] for row in changed])
        return SamplingRows(
            changed=None if len(changed) == len(owners) else self._index(changed),
            drawn=changed,
            seeds=[self._samplings[owners[row]].seed for row in changed],
            temperatures=self._temperatures[of_changed],
            filters=self._filters.take(of_changed),
        )

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRows:
    """R rows of one forward, each with its session's sampling. C of them are changed: their pick is not the argmax of their logits."""

    changed: Tensor | None
    """[C] which rows they are; None: all."""
    drawn: Sequence[int]
    """[C] which rows they are."""
    seeds: Sequence[int]
    """[C]"""
    temperatures: Tensor
    """[C, 1]"""
    filters: Filters
    """Of the changed rows."""

    @property
    def plain(self) -> bool:
        """True if every row is picked by its logits."""
        return not self.drawn
