"""Running of one step of a head, over a paged KV pool of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.graphs import Buckets, Capturer, Inputs, Results, StaticAttention
from specsplit.model.heads.head import Head
from specsplit.model.lm.runner import ModelRunner
from specsplit.model.pages.batch import Row
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.input_batch import InputBatch

_HIDDEN: Final = "hidden"
_STATES: Final = "states"


class HeadRunner(ModelRunner):
    """Runs rows through one step's layer. Pages are of one token. Used by one thread at a time.

    A row's positions are those of its tokens less step + 1, which is what heads are trained with; its slots are of this runner's
    pool. `logits_at` of rows is ignored: the caller asks the head for the logits of the hidden states that it wants.
    """

    def __init__(
        self, head: Head, step: int, num_slots: int, backend: str = "auto", kv_cache_dtype: str = "auto"
    ) -> None:
        if not 0 <= step < head.shape.num_steps:
            raise ValueError(f"step is {step}, expected 0..{head.shape.num_steps - 1}")
        geometry = head.geometries[step]
        super().__init__(geometry, num_slots, 1, head.dtype, head.device, backend, kv_cache_dtype, alone=head.alone)
        self.head: Final = head
        self.step: Final = step
        self._states = self._empty(head.shape.state_width)
        """The states [most tokens, state_width] that captured forwards read, if there are any."""
        self._into: Tensor | None = None
        """Where captured forwards store the states of their tokens; None: nowhere."""

    def forward(self, rows: Sequence[Row], states: Tensor, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """states [T, state_width] of the parents of the rows' tokens -> hidden [T, hidden_size], states [T, state_width].

        Stores the tokens' KV, and their states in `into` [kv.num_slots, state_width], if that is there. No rows: [0, hidden_size] and
        [0, state_width], and no effect. The results are to be read before the next forward.
        """
        if len(states) != sum(row.num_tokens for row in rows) or states.shape[1] != self.head.shape.state_width:
            raise ValueError(
                f"states are {tuple(states.shape)}, expected one of width {self.head.shape.state_width} for each token of the rows"
            )
        if not rows:
            return self._empty(self.head.hidden_size), self._empty(self.head.shape.state_width)
        return self._replayed(rows, states, into) or self._eager(rows, states, into)

    def capture_graphs(
        self,
        buckets: Buckets,
        into: Tensor | None,
        *,
        lazily: bool = False,
        capturer: Capturer | None = None,
        attention: StaticAttention | None = None,
    ) -> None:
        """Capture forwards that store states in `into`, as `capture_program` does. Later forwards that store them there are replayed."""
        self._states = torch.zeros(
            buckets.most_tokens, self.head.shape.state_width, dtype=self.head.dtype, device=self.head.device
        )
        self._into = into
        self.capture_program(self._captured, buckets, lazily=lazily, capturer=capturer, attention=attention)

    @torch.inference_mode()
    def _replayed(self, rows: Sequence[Row], states: Tensor, into: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Replay the captured forward of these rows; None: there is no graph for them."""
        if self.graphs is None or into is not self._into:
            return None
        if len(states) <= len(self._states):
            self._states[: len(states)].copy_(states)
        results = self.graphs.run(rows)
        return None if results is None else (results[_HIDDEN][: len(states)], results[_STATES][: len(states)])

    @torch.inference_mode()
    def _eager(self, rows: Sequence[Row], states: Tensor, into: Tensor | None) -> tuple[Tensor, Tensor]:
        batch = self.inputs(rows)
        return self._compute(batch, states, into, self.backend.plan(batch))

    def _captured(self, inputs: Inputs, forward_batch: ForwardBatch, layers: Collection[int]) -> Results:
        states = self._states[: len(inputs.tokens)]
        hidden, new_states = self._compute(inputs, states, self._into, forward_batch)
        return {_HIDDEN: hidden, _STATES: new_states}

    def _compute(
        self, batch: InputBatch | Inputs, states: Tensor, into: Tensor | None, forward_batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        hidden, new_states = self.head(self.step, batch.tokens, states, batch.positions, forward_batch=forward_batch)
        if into is not None:
            into.index_copy_(0, batch.write_slots, new_states)
        return hidden, new_states

    @torch.inference_mode()
    def forward_on_device(self, batch: DeviceBatch, states: Tensor, into: Tensor) -> Tensor:
        """Run a batch that only the device knows, without waiting for it: states [B * Q, state_width] -> hidden [B * Q, hidden_size].

        Stores KV, and states in `into` [num_slots, state_width].
        """
        planned = self.plan_on_device(batch)
        hidden, new_states = self.head(self.step, batch.tokens, states, batch.positions, forward_batch=planned)
        into.index_copy_(0, batch.write_slots, new_states)
        return hidden

    def _empty(self, width: int) -> Tensor:
        return torch.empty(0, width, dtype=self.head.dtype, device=self.head.device)
