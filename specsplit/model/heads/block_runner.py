"""Running of a block drafter, over a paged KV pool of its own.

The pool holds keys and values of the features of committed tokens. Those of a block are written behind them, to slots that are free again
as soon as the block is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.heads.block_config import BlockSight
from specsplit.model.heads.block_head import BlockHead
from specsplit.model.lm.runner import ModelRunner
from specsplit.model.pages.batch import Ints, Mask, Row
from specsplit.model.pages.tables import RowPages
from specsplit.model.tensors.transfer import on_device


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """Blocks of one session, n of `length` tokens each, which see the same committed tokens."""

    tokens: Ints
    """[n, length], the masks among them."""
    first: Ints
    """[n] position of the first token of each block."""
    pages: RowPages
    """Of the committed tokens that are seen, and behind them of all tokens of the blocks."""

    def row(self, sight: BlockSight) -> Row:
        """The row in layers that see so much."""
        count, length = self.tokens.shape
        own = np.kron(np.eye(count, dtype=np.bool_), _block_mask(length, sight.causal))
        before = self.pages.length - count * length
        if sight.window is not None and before > sight.window:
            seen = np.arange(before) >= before - sight.window
            own = np.concatenate((np.broadcast_to(seen, (count * length, before)), own), axis=1)
        positions = (self.first[:, None] + np.arange(length)).reshape(-1)
        return Row(self.tokens.reshape(-1), positions, self.pages, own)


def _block_mask(length: int, causal: bool) -> Mask:
    return np.tri(length, dtype=np.bool_) if causal else np.ones((length, length), dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class _BySight:
    """A ForwardBatch of layers that do not all see the same."""

    planned: Sequence[ForwardBatch]
    which: Sequence[int]
    """By layer, the number of what was planned."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        return self.planned[self.which[layer]].attend(layer, query, key, value, scaling, extras)


class BlockRunner(ModelRunner):
    """Runs blocks through a drafter's layers. Pages are of one token. Used by one thread at a time."""

    def __init__(self, head: BlockHead, num_slots: int, backend: str = "auto", kv_cache_dtype: str = "auto") -> None:
        super().__init__(head.geometry, num_slots, 1, head.dtype, head.device, backend, kv_cache_dtype)
        self.head: Final = head
        self._sights: Final = list(dict.fromkeys(head.said.sights))
        self._which: Final = [self._sights.index(sight) for sight in head.said.sights]

    @torch.inference_mode()
    def extend(self, features: Tensor, positions: Ints, slots: Ints) -> None:
        """Store the keys and values of features [T, feature width] of committed tokens at positions [T] in slots [T]."""
        at = on_device(slots, self.device)
        context = self.head.fuse(features)
        for layer, (keys, values) in enumerate(self.head.keys_values(context, on_device(positions, self.device))):
            self.kv.write(layer, at, keys, values)

    @torch.inference_mode()
    def draft(self, blocks: Sequence[BlockRows]) -> Tensor:
        """Run blocks (of one length, at least one) -> hidden [n, length, W] of all sessions' blocks, end to end."""
        batches = [self.inputs([each.row(sight) for each in blocks]) for sight in self._sights]
        forward_batch = _BySight([self.backend.plan(batch) for batch in batches], self._which)
        length = blocks[0].tokens.shape[1]
        first = batches[0]
        return self.head(first.tokens, first.positions, length, forward_batch).unflatten(0, (-1, length))
