"""What block drafters of `speculators` 0.9 learn besides, when they are trained here: blocks that begin with drafted tokens.

A drafter of this project is also asked to go on from tokens that it has drafted (docs/adr/0039-blocks.md). They stand in the block behind
its first token in the place of masks, and the features of those farther back are missing. The trainer of speculators knows blocks of
masks alone. With `teach_shown_tokens` half of its blocks show tokens of the text, up to four of them, and where there are four the last
few features may be missing. Nothing of specsplit is imported here: `speculators_trainer` loads this file where specsplit is not.

    A   blocks      N   tokens of a block      T   tokens of all texts of a step
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

MOST_SHOWN: Final = 4
"""Tokens shown at most, which leaves half of a block to masks: a drafter shows no more (specsplit_drafter.kinds.block_model)."""


@dataclass(frozen=True)
class Shown:
    """How much of each block is known."""

    tokens: Tensor
    """int64 [A]: tokens of the text behind the first that are shown."""
    missing: Tensor
    """int64 [A]: features before the first token that are missing, where as many tokens are shown as may be."""

    @classmethod
    def drawn(cls, blocks: int, size: int, device: torch.device | None = None) -> Shown:
        """Draw for `blocks` blocks of `size` tokens; half of them show nothing."""
        most = min(MOST_SHOWN, (size - 1) // 2)
        tokens, missing = torch.randint(-most, most + 1, (2, blocks), device=device).clamp(min=0)
        return cls(tokens, missing * (tokens == most))

    def known(self, size: int) -> Tensor:
        """Bool [A, N]: which tokens of a block are no masks."""
        return torch.arange(size, device=self.tokens.device) <= self.tokens[:, None]

    def learnt(self, size: int, *, from_anchor: bool, causal: bool) -> Tensor:
        """Bool [A, N]: which positions have something to learn, since the token that each of them predicts is not shown to it.

        from_anchor: a position predicts the token behind it, else its own. causal: it sees the tokens before it alone.
        """
        if causal and from_anchor:
            return torch.ones(len(self.tokens), size, dtype=torch.bool, device=self.tokens.device)
        predicted = torch.arange(size, device=self.tokens.device) + from_anchor
        return predicted > self.tokens[:, None]

    def ends(self, anchors: Tensor, texts: Tensor) -> Tensor:
        """Indices [A], each behind the last token whose feature a block sees.

        anchors: [A] of the first tokens of blocks. texts: [T] the text that each token is of; none is missing where a text begins.
        """
        last = anchors - self.missing - 1
        there = (last >= 0) & (texts[last.clamp(min=0)] == texts[anchors])
        return torch.where(there, last + 1, anchors)


def teach_shown_tokens(drafter: Any, *, causal: bool) -> None:
    """Change a model class of speculators, DFlashDraftModel, and with it those derived from it, so that its blocks show tokens.

    causal: a token of a block sees those before it alone, in all layers; else in those with a window, as the model has it.
    """
    make, forward = drafter.__init__, drafter._backbone_forward
    build_mask, create_mask = drafter._build_attention_mask, drafter._create_attention_mask

    def build_mask_and_draw(self: Any, loss_mask: Tensor, blocks: int, texts: Tensor, device: Any) -> Any:
        self.shown = Shown.drawn(blocks, self.block_size, loss_mask.device)
        made = build_mask(self, loss_mask, blocks, texts, device)
        self.anchors = made[2]
        return made

    def create_mask_of_known(
        self: Any, document_ids: Tensor, total_seq_len: int, anchor_positions: Tensor, **more: Any
    ) -> Any:
        if causal and more.get("sliding_window") is None:
            more["sliding_window"] = total_seq_len  # layers with a window are causal
        ends = self.shown.ends(anchor_positions, document_ids.flatten())
        return create_mask(self, document_ids, total_seq_len, ends, **more)

    def embed_shown(self: Any, masked: Tensor) -> Tensor:
        """masked: [1, A * N] the first token of each block and masks -> the same with shown tokens in the place of masks."""
        places = self.anchors[:, None] + torch.arange(self.block_size, device=masked.device)
        known = self.shown.known(self.block_size)
        return torch.where(known, self.text[0, places], masked.view(known.shape)).view(masked.shape)

    def made(self: Any, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        self.embed_tokens.register_forward_pre_hook(lambda _, asked: (embed_shown(self, asked[0]),))

    def forward_with_shown(self: Any, hidden_states: Tensor, input_ids: Tensor, *rest: Any, **more: Any) -> Any:
        self.text = input_ids
        hidden, logits, targets, counted, indices = forward(self, hidden_states, input_ids, *rest, **more)
        learnt = self.shown.learnt(self.block_size, from_anchor=self.config.sample_from_anchor, causal=causal)
        return hidden, logits, targets, counted * learnt.view(1, -1).to(counted.dtype), indices

    drafter.__init__ = made
    drafter._build_attention_mask = torch.compiler.disable(build_mask_and_draw)
    drafter._create_attention_mask = torch.compiler.disable(create_mask_of_known)
    drafter._backbone_forward = forward_with_shown
