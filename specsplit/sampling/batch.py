"""How the rows of a forward are picked, as tensors. Those of the sessions are made when sessions come and go, and not at each step.

S   sessions      R   rows of a forward      C   changed ones: their pick is not the argmax of their logits      N   sampled ones of them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specsplit.model.tensors.transfer import on_device
from specsplit.sampling.counts import TokenCounts
from specsplit.sampling.filters import Filters
from specsplit.sampling.processors import LogitBias, OwnedRows, Penalties
from specsplit.values import Sampling

COLDEST: Final = 1e-20
"""Temperatures below this count as this: logits (below 1e18) divided by it are still finite, and any difference still decides."""


class SamplingBatch:
    """How the sessions pick whose rows come in one forward."""

    def __init__(
        self,
        samplings: Sequence[Sampling],
        vocab_size: int,
        device: torch.device,
        counts: Sequence[TokenCounts | None] = (),
    ) -> None:
        """`counts`: of every session that is penalised; to be left out only where none is."""
        self._samplings = samplings
        self._vocab_size = vocab_size
        self._device = device
        temperatures = [max(sampling.temperature, COLDEST) for sampling in samplings]
        self._temperatures = on_device(np.array(temperatures, dtype=np.float32), device)[:, None]
        self._filters = Filters.of(samplings, vocab_size, device)
        self._bias = LogitBias(samplings, device) if any(s.logit_bias for s in samplings) else None
        self._penalties = Penalties(samplings, counts, device) if any(s.penalised for s in samplings) else None

    def rows(self, owners: Sequence[int]) -> SamplingRows:
        """Index the rows of a forward, of which number r is of the session owners[r]."""
        changed = [row for row, owner in enumerate(owners) if not self._samplings[owner].plain]
        of_changed = [owners[row] for row in changed]
        sampled = [place for place, owner in enumerate(of_changed) if not self._samplings[owner].greedy]
        of_sampled = self._index([of_changed[place] for place in sampled])
        return SamplingRows(
            changed=changed,
            changed_at=None if len(changed) == len(owners) else self._index(changed),
            sampled=sampled,
            sampled_at=None if len(sampled) == len(changed) else self._index(sampled),
            seeds=[self._samplings[of_changed[place]].seed for place in sampled],
            temperatures=self._temperatures[of_sampled],
            filters=self._filters.take(of_sampled),
            bias=self._bias and (self._bias, self._owned(of_changed, lambda sampling: bool(sampling.logit_bias))),
            penalties=self._penalties
            and (self._penalties, self._owned(of_changed, lambda sampling: sampling.penalised)),
        )

    def _owned(self, owners: Sequence[int], concerned: Callable[[Sampling], bool]) -> OwnedRows:
        """Find those rows that are of the sessions concerned."""
        places = [place for place, owner in enumerate(owners) if concerned(self._samplings[owner])]
        return OwnedRows(places, [owners[place] for place in places], self._vocab_size, self._device)

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return on_device(np.array(numbers, dtype=np.int64), self._device)


@dataclass(frozen=True, eq=False)
class SamplingRows:
    """R rows of one forward, each with its session's sampling. Forwards of one shape after the other are picked by the same."""

    changed: Sequence[int]
    """[C] which rows they are."""
    changed_at: Tensor | None
    """[C] the same on the device; None: all rows."""
    sampled: Sequence[int]
    """[N] which of the changed ones they are."""
    sampled_at: Tensor | None
    """[N] the same on the device; None: all that are changed."""
    seeds: Sequence[int]
    """[N]"""
    temperatures: Tensor
    """[N, 1]"""
    filters: Filters
    """The filters of the sampled rows."""
    bias: tuple[LogitBias, OwnedRows] | None
    """With the changed rows that are biased; None: no session is."""
    penalties: tuple[Penalties, OwnedRows] | None
    """With the changed rows that are penalised; None: no session is."""

    @property
    def plain(self) -> bool:
        """True if every row is picked by its logits."""
        return not self.changed

    def of_sampled(self, values: Sequence[int]) -> Sequence[int]:
        """Take from the values [R] of every row those [N] of the sampled ones."""
        if len(self.sampled) == len(values):
            return values
        return [values[self.changed[place]] for place in self.sampled]
