"""From logits to candidate children, under the session's own noise: the same for every kind with a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.errors import SpecsplitError
from specsplit.sampling import NoiseCache, SamplingBatch, has_pick, perturb
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
    def rank(
        self, logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]
    ) -> list[Children | SpecsplitError]:
        """Logits [n, V] behind nodes at `positions` -> their likeliest children; an error for a node whose logits are no numbers."""
        rows = SamplingBatch(samplings, logits.shape[1], logits.device).rows(range(len(samplings)))
        perturbed = perturb(logits.float(), rows, [position + 1 for position in positions], self._noise)
        values, tokens = perturbed.topk(self._children, dim=-1)
        log_probabilities = values.double() - perturbed.logsumexp(dim=-1, keepdim=True).double()
        columns = zip(
            has_pick(values[:, 0]).tolist(),
            positions,
            tokens.cpu().numpy(),
            log_probabilities.cpu().numpy(),
            strict=True,
        )
        return [Children(of_node, raw) if fit else _no_numbers(position) for fit, position, of_node, raw in columns]


def _no_numbers(position: int) -> SpecsplitError:
    return SpecsplitError(
        f"the drafter's logits behind position {position} are NaN or infinite: it cannot draft for this text"
    )
