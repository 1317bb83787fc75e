"""From logits to candidate children, under the session's own noise: the same for every kind with a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.errors import SpecsplitError
from specsplit.sampling import NoiseCache, SamplingBatch, has_pick, perturb
from specsplit.tree import Flags
from specsplit.values import Sampling
from specsplit_drafter.proposer import Children

NOISE_BYTES: Final = 64 * 2**20
"""Rows of noise kept: nodes of one depth share theirs, from one expansion to the next."""


class Ranking:
    """Ranks the next tokens of nodes."""

    def __init__(self, children: int, vocab_size: int) -> None:
        """children: candidates of one node; as many as the vocabulary has, if it has fewer."""
        self._children = min(children, vocab_size)
        self._noise = NoiseCache(NOISE_BYTES)

    @torch.inference_mode()
    def rank(self, logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> tuple[Children, Flags]:
        """Rank logits [n, V] behind nodes at `positions` -> their likeliest children, and which rows of logits are numbers at all [n]."""
        rows = SamplingBatch(samplings, logits.shape[1], logits.device).rows(range(len(samplings)))
        perturbed = perturb(logits.float(), rows, [position + 1 for position in positions], self._noise)
        values, tokens = perturbed.topk(self._children, dim=-1)
        raw = values.double() - perturbed.logsumexp(dim=-1, keepdim=True).double()
        return Children(tokens.cpu().numpy(), raw.cpu().numpy()), has_pick(values[:, 0]).cpu().numpy()


def no_numbers(position: int) -> SpecsplitError:
    """Make what a session is told whose logits behind `position` cannot be ranked."""
    return SpecsplitError(
        f"the drafter's logits behind position {position} are NaN or infinite: it cannot draft for this text"
    )
