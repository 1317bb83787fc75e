"""Embeddings that are the weights of the LM head: they are read from where its products read them, so that there is one copy."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.native.weights import Weights


class PackedEmbedding(nn.Module):
    """The rows of a packed weight [V, width]."""

    def __init__(self, weights: Weights, like: Tensor) -> None:
        """like [V, width] was packed."""
        super().__init__()
        self.weight = torch.empty(like.shape, dtype=like.dtype, device="meta")  # some models ask for its type
        self._weights: Final = weights

    @classmethod
    def like(cls, embeddings: nn.Module, tied: nn.Module, output: nn.Module) -> PackedEmbedding | None:
        """What may stand for embeddings whose weight the LM head `tied` has too, for which `output` stands; None: nothing may."""
        if (
            type(embeddings) is not nn.Embedding
            or embeddings.weight is not tied.weight
            or embeddings.max_norm is not None
        ):
            return None
        if not isinstance(output, PackedLinear) or not isinstance(output.packed, Weights):
            return None
        return cls(output.packed, embeddings.weight)

    @property
    def packed_tensors(self) -> list[Tensor]:
        """See `specsplit.model.layers.weights`."""
        return self._weights.tensors

    def forward(self, tokens: Tensor) -> Tensor:
        """[...] -> [..., width]"""
        return self._weights.rows(tokens)
