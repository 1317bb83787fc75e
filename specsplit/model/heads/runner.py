"""One step of a head over paged KV of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.model.batch import Row
from specsplit.model.heads.head import Head
from specsplit.model.runner import ModelRunner


class HeadRunner(ModelRunner):
    """Runs rows through one step's layer. Pages are of one token. Used by one thread at a time.

    A row's positions are those of its tokens less step + 1, which is what heads are trained with; its slots are of this runner's
    pool and no other's. `logits_at` of rows is not looked at: ask the head for the logits of the hidden rows you want.
    """

    def __init__(self, head: Head, step: int, num_slots: int, backend: str = "auto") -> None:
        if not 0 <= step < head.shape.num_steps:
            raise ValueError(f"step is {step}, expected 0..{head.shape.num_steps - 1}")
        super().__init__(head.geometry, num_slots, 1, head.dtype, head.device, backend)
        self.head: Final = head
        self.step: Final = step

    def forward(self, rows: Sequence[Row], states: Tensor, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """states [T, state_width] of the parents of the rows' tokens -> hidden [T, hidden_size], states [T, state_width].

        Stores the tokens' KV, and their states in `into` [num_slots, state_width], if that is there. No rows: [0, hidden_size] and
        [0, state_width], and no effect.
        """
        if len(states) != sum(row.num_tokens for row in rows) or states.shape[1] != self.head.shape.state_width:
            raise ValueError(
                f"states are {tuple(states.shape)}, expected one of width {self.head.shape.state_width} for each token of the rows"
            )
        if not rows:
            return self._empty(self.head.hidden_size), self._empty(self.head.shape.state_width)
        with torch.inference_mode():
            batch = self.inputs(rows)
            hidden, left = self.head(
                self.step, batch.tokens, states, batch.positions, forward_batch=self.backend.plan(batch)
            )
            if into is not None:
                into.index_copy_(0, batch.write_slots, left)
            return hidden, left

    def _empty(self, width: int) -> Tensor:
        return torch.empty(0, width, dtype=self.head.dtype, device=self.head.device)
