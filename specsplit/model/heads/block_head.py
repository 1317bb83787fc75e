"""Block drafters: DFlash, DFlash 2 and DSpark. One forward drafts several tokens.

A block is the last committed token, the *anchor*, and masks behind it. Its tokens see the features of all committed tokens before it,
as keys and values of every layer, and one another, in both directions as a rule. Position i of the block gives the distribution of the
token that stands there, or with `from_anchor` of the one behind it.

T   tokens of all blocks, end to end      W   width of a state      V   tokens that the drafter proposes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.features import FeatureNeed
from specsplit.model.attention.interface import NAME
from specsplit.model.heads.block_choice import BlockChoice
from specsplit.model.heads.block_config import BlockConfig
from specsplit.model.heads.block_layers import BlockLayers
from specsplit.model.heads.config import reach_of
from specsplit.model.heads.head_module import HeadModule
from specsplit.model.heads.shape import DraftShape
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.model.pages.geometry import Geometry

MASK_EMBEDDING: Final = "mask_embedding"
"""The tensor [W] that some checkpoints have in the place of the mask's own embedding."""


class BlockHead(HeadModule):
    """A drafter of blocks. said: what its config.json says. config: of its decoder layers."""

    def __init__(
        self,
        said: BlockConfig,
        config: PretrainedConfig,
        target: TargetEmbeddings,
        *,
        whole_vocabulary: bool,
        own_lm_head: bool,
        model: str = "",
        attn_implementation: str = NAME,
    ) -> None:
        """whole_vocabulary: it proposes every token of the target."""
        super().__init__(target)
        need = FeatureNeed(said.layers, target.hidden_size)
        max_context = min(target.max_context, reach_of(config, target.max_context))
        self.shape: Final = DraftShape(said.kind, need, max_context, target.vocabulary, model)
        width, vocab_size = config.hidden_size, target.vocabulary.size
        if target.embeddings.shape[1] != width:
            raise LoadError(
                f"a block drafter of width {width} on embeddings of width {target.embeddings.shape[1]}: expected embeddings of its own"
            )
        draft_size = vocab_size if whole_vocabulary or said.draft_vocab_size is None else said.draft_vocab_size
        self.said: Final = said
        self.body = BlockLayers(config, len(said.sights), said.conv, attn_implementation)
        self.fc = nn.Linear(len(said.layers) * target.hidden_size, width, bias=False)
        self.hidden_norm = self.body.new_norm()
        self.lm_head = nn.Linear(width, draft_size, bias=False) if own_lm_head else None
        self.mask_embedding: nn.Parameter | None = None
        self.choice = BlockChoice(said, vocab_size, draft_size, width)
        if not whole_vocabulary:
            self.set_draft_tokens(torch.arange(draft_size))

    @property
    def config(self) -> PretrainedConfig:
        """The config of its decoder layers."""
        return self.body.config

    @property
    def geometry(self) -> Geometry:
        """Attention shape of its layers; what they see is in `said.sights`."""
        config: Any = self.body.config
        return Geometry.uniform(
            len(self.said.sights), config.num_attention_heads, config.num_key_value_heads, config.head_dim
        )

    def fuse(self, features: Tensor) -> Tensor:
        """features [n, feature width] -> context [n, W]"""
        return self.hidden_norm(self.fc(features.to(self.dtype)))

    def keys_values(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """context [n, W] of committed tokens at positions [n] -> their keys and values [n, kv_heads, head_dim], by layer."""
        return self.body.keys_values(context, positions)

    def forward(self, tokens: Tensor, positions: Tensor, length: int, forward_batch: Any) -> Tensor:
        """tokens [T] of blocks of `length` each, masks among them, at positions [T] -> hidden [T, W], normed."""
        return self.body(self._embed(tokens), positions, length, forward_batch)

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, W] -> [n, V]: what is likely at each position, whatever is chosen at others."""
        logits = self.target.logits(hidden) if self.lm_head is None else self.lm_head(hidden)
        return logits if self.said.logit_scale == 1 else logits * self.said.logit_scale

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded = self.target.embed(tokens)
        if self.mask_embedding is None:
            return embedded
        return torch.where((tokens == self.said.mask_token).unsqueeze(-1), self.mask_embedding, embedded)

    @property
    def layers(self) -> Sequence[nn.Module]:
        """Its decoder layers."""
        return self.body.each
