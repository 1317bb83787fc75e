"""Ranking on the device: the likeliest children of nodes that the device has chosen, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specsplit.sampling import SamplingRows, has_pick, perturb


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """The likeliest children of n nodes, on the device."""

    tokens: Tensor
    """int64 [n, c]"""
    raw: Tensor
    """float64 [n, c] log-probabilities, descending."""
    finite: Tensor
    """bool [n] True if the logits of a node are finite."""

    @staticmethod
    def of(perturbed: Tensor, count: int, *, barred: bool = False) -> Ranked:
        """Rank perturbed logits [n, V]. barred: a row may be -inf all over, and has no children then."""
        values, tokens = perturbed.topk(count, dim=-1)
        raw = values.double() - perturbed.logsumexp(dim=-1, keepdim=True).double()
        if not barred:
            return Ranked(tokens, raw, has_pick(values[:, 0]))
        none = values[:, 0] == -torch.inf
        return Ranked(tokens, raw.masked_fill(none.unsqueeze(1), -torch.inf), has_pick(values[:, 0]) | none)

    def at(self, rows: Tensor) -> Ranked:
        """Select rows int64 [m]."""
        return Ranked(*(part.index_select(0, rows) for part in (self.tokens, self.raw, self.finite)))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRanking:
    """Ranks n nodes of known sessions at positions that only the device knows: all the noise that they may need is computed beforehand."""

    rows: SamplingRows
    """[n]; none is penalised, and none has a top_p."""
    noise: Tensor
    """float32 [P, V] of all positions that the nodes of sampled sessions may have."""
    places: Tensor
    """int64 [sampled rows] added to the position of a node, these give its place in `noise`."""
    children: int

    def rank(self, logits: Tensor, positions: Tensor) -> Ranked:
        """Rank logits [n, V] behind nodes at positions int64 [n]."""
        if self.rows.plain:
            return Ranked.of(logits.float(), self.children)
        at = self.places + self._sampled(positions)

        def noise(seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
            return self.noise.index_select(0, at)

        return Ranked.of(perturb(logits.float(), self.rows, range(len(logits)), noise=noise), self.children)

    def _sampled(self, values: Tensor) -> Tensor:
        """Select of the values [n] of all nodes those of sampled ones."""
        for which in (self.rows.changed_at, self.rows.sampled_at):
            values = values if which is None else values.index_select(0, which)
        return values
