"""A draft head: the interface that EAGLE, EAGLE-3 and multi-token prediction share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specsplit.model.attention.support import observe
from specsplit.model.heads.head_module import HeadModule
from specsplit.model.heads.shape import HeadShape
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.model.layers.sharded import ShardedBlocks, TensorMesh
from specsplit.model.layers.shards import shard_layers
from specsplit.model.pages.geometry import Geometry
from specsplit.ranks.mesh import Numbers


class Head(HeadModule, ABC):
    """Steps count from 0 here: step s is layer s + 1 of `HeadShape`. Widths and dtypes of everything are the head's."""

    def __init__(self, shape: HeadShape, target: TargetEmbeddings, hidden_size: int) -> None:
        super().__init__(target)
        self.shape: Final = shape
        self.hidden_size: Final = hidden_size
        """Width of `hidden`, which `logits` reads."""
        self.blocks: Sequence[ShardedBlocks] = ()
        """The parts that ranks share, by step; empty: the head is whole."""

    @property
    @abstractmethod
    def config(self) -> PretrainedConfig:
        """The config of one step's decoder layers."""

    @property
    @abstractmethod
    def layers(self) -> Sequence[nn.Module]:
        """The decoder layers, those of one step after those of the step before."""

    def layers_of(self, step: int) -> Sequence[nn.Module]:
        """The decoder layers that a forward of a step runs through."""
        return [self.layers[step]]

    def _try(self) -> None:
        """A rank that shares its MLPs with others is not tried, since all ranks run together."""
        for step in range(self.shape.num_steps if self.alone else 0):
            self._observed(step)

    def shard(self, mesh: TensorMesh) -> None:
        """Keep only this rank's part of every step's MLP. Raises LoadError for one that cannot be cut."""
        self.blocks = [shard_layers(self, self.layers_of(step), mesh) for step in range(self.shape.num_steps)]

    @property
    def alone(self) -> bool:
        """Whether no other ranks share it."""
        return not self.blocks

    def assemble(self, numbers: Sequence[int] = ()) -> tuple[Numbers, ...]:
        """Wait until the other ranks have come so far in loading theirs -> everybody's numbers, by rank. Raises RankLost."""
        return (tuple(numbers),) if self.alone else self.blocks[0].assemble(numbers)

    @property
    def geometry(self) -> Geometry:
        """Attention shape of the first step, as `geometries`."""
        return self.geometries[0]

    @cached_property
    def geometries(self) -> Sequence[Geometry]:
        """Attention shape of every step. Only for a head built for serving; raises LoadError for attention not supported."""
        return [self._observed(step) for step in range(self.shape.num_steps)]

    def _observed(self, step: int) -> Geometry:
        one = torch.zeros(1, dtype=torch.long, device=self.device)
        state = torch.zeros(1, self.shape.state_width, dtype=self.dtype, device=self.device)
        return observe(
            lambda recorder: self(step, one, state, one, forward_batch=recorder),
            len(self.layers_of(step)),
            self.shape.max_context,
        )

    def fuse(self, features: Tensor, *, projected: bool = False) -> Tensor:
        """features [..., feature width] -> states [..., state_width].

        projected: they are as wide as states already, because the verifier applied the projection.
        """
        return self._fuse(features.to(self.dtype), projected)

    def forward(
        self, step: int, tokens: Tensor, states: Tensor, positions: Tensor, **attention: Any
    ) -> tuple[Tensor, Tensor]:
        """tokens [T] (the target's ids), states [T, state_width] of their parents, positions [T] for rope
        -> hidden [T, hidden_size] for `logits`, states [T, state_width] for the next step.

        All may have a batch dimension in front. `attention` goes to the attention function: `forward_batch` for ours, an
        `attention_mask` [B, 1, T, T] for transformers' own, which is causal without one.
        """
        if tokens.ndim == 1:
            packed = self._advance(step, tokens[None], states[None], positions[None], **attention)
            return packed[0][0], packed[1][0]
        return self._advance(step, tokens, states, positions, **attention)

    def logits(self, step: int, hidden: Tensor) -> Tensor:
        """hidden [..., hidden_size] -> float32 [..., V] over the target's vocabulary; -inf where the head has no token."""
        return self.in_target(self.draft_logits(step, hidden))

    @abstractmethod
    def draft_logits(self, step: int, hidden: Tensor) -> Tensor:
        """hidden [..., hidden_size] -> [..., draft V] over the head's own vocabulary (`target_ids`)."""

    def _fuse(self, features: Tensor, projected: bool) -> Tensor:
        if projected:
            raise ValueError(f"{self.shape.kind} heads have no projection")
        return features

    @abstractmethod
    def _advance(
        self, step: int, tokens: Tensor, states: Tensor, positions: Tensor, **attention: Any
    ) -> tuple[Tensor, Tensor]:
        """`forward` with a batch dimension."""

    if TYPE_CHECKING:
        __call__ = forward
