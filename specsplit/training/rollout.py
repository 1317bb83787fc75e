"""A head run several steps deep over whole sequences at once, as it will run in service: what its training and its figures rest on.

Row i of step s reads token i + 1 + s and guesses what the target says after it. A recurrent head (EAGLE, EAGLE-3) reads its own state
from step 1 on and attends to the true rows up to i and to its own guesses of row i alone: the training-time test of EAGLE-3
(arXiv 2503.01840). A head with a layer per step attends causally within each step.

    B   sequences      N   rows of each      D   depth: steps      S   width of a state
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specsplit.model.attention.interface import tokens_first
from specsplit.model.heads import Head


class Unrolled:
    """Attention over the rows of `sequences` sequences of equal length, one call per step (a ForwardBatch).

    A row of the first call attends to itself and to the rows before it; in a later call also to what the calls since then wrote in
    its own row, and to the first call's rows as before.
    """

    def __init__(self, sequences: int) -> None:
        self._sequences = sequences
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        """See ForwardBatch; T is B * N, sequence by sequence."""
        self._keys.append(self._by_sequence(key.to(value.dtype)))
        self._values.append(self._by_sequence(value))
        asked = self._by_sequence(query.to(value.dtype))
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if len(self._keys) == 1:
            out = scaled_dot_product_attention(
                asked, self._keys[0], self._values[0], is_causal=True, scale=scale, enable_gqa=True
            )
        else:
            out = self._attend_to_guesses(asked, scale)
        return out.transpose(1, 2).reshape(query.transpose(1, 2).shape)

    def _by_sequence(self, rows: Tensor) -> Tensor:
        """[1, heads, B * N, width] -> [B, heads, N, width]"""
        return tokens_first(rows).unflatten(0, (self._sequences, -1)).transpose(1, 2)

    def _attend_to_guesses(self, query: Tensor, scale: float) -> Tensor:
        """query [B, H, N, width] -> [B, H, N, width]"""
        rows, kv_heads = query.shape[2], self._keys[0].shape[1]
        query = query.unflatten(1, (kv_heads, -1))  # [B, K, G, N, width]
        unseen = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
        true = (query @ self._keys[0].transpose(-1, -2).unsqueeze(2)).masked_fill(unseen, float("-inf"))
        own = torch.stack([(query * key.unsqueeze(2)).sum(-1) for key in self._keys[1:]], dim=-1)
        weights = (torch.cat([true, own], dim=-1).float() * scale).softmax(-1).to(query.dtype)
        out = weights[..., :rows] @ self._values[0].unsqueeze(2)
        for step, value in enumerate(self._values[1:]):
            out = out + weights[..., rows + step, None] * value.unsqueeze(2)
        return out.flatten(1, 2)


def rows_of(width: int, depth: int) -> int:
    """N for sequences of `width` tokens: as many rows as have a token for every step and the target's answer to it."""
    return width - depth


def rollout(head: Head, tokens: Tensor, states: Tensor, depth: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(draft logits [B * N, draft V], states [B * N, S]) of each of `depth` steps, sequence by sequence.

    tokens [B, width]; states [B, N, S], those of tokens 0 to N - 1.
    """
    sequences, rows = states.shape[:2]
    numbers = torch.arange(rows).repeat(sequences)
    state, attention = states.flatten(0, 1), Unrolled(sequences)
    for ahead in range(depth):
        layer = 0 if head.shape.recurrent else ahead
        if layer:
            attention = Unrolled(sequences)
        read = tokens[:, 1 + ahead : 1 + ahead + rows].flatten()
        # A row of layer k (from 1) stands k positions below its token.
        hidden, state = head(layer, read, state, numbers + ahead - layer, forward_batch=attention)
        yield head.draft_logits(layer, hidden), state
