"""The draft model that is a block drafter: DFlash, DFlash 2 and DSpark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specsplit.features import FeatureFormat, FeatureNeed
from specsplit.model.heads import BlockHead, BlockRows, BlockRunner
from specsplit.model.pages.kv import STORED
from specsplit.model.pages.pool import PagePool
from specsplit.model.pages.room import MemoryShare, kv_bytes, room_of
from specsplit.model.pages.tables import Slots
from specsplit.model.tensors.transfer import on_device
from specsplit.tree import Ints
from specsplit_drafter.descent.device_ranking import Ranked
from specsplit_drafter.drafts.draft_weights import DraftWeights

MOST_SHOWN: Final = 4
"""Tokens that are drafted, and have no features yet, with which a block may begin, the first not counted."""
SCRATCH: Final = 1024
"""Tokens of blocks in one forward."""


class BlockModel:
    """A block drafter over a pool of slots, of which blocks themselves have some of their own."""

    def __init__(
        self,
        head: BlockHead,
        num_slots: int | MemoryShare,
        need: FeatureNeed | None = None,
        attention: str = "auto",
        kv_cache_dtype: str = "auto",
    ) -> None:
        """num_slots: for features of committed tokens, or the share of the device's memory that all slots take.

        need: the head's own, perhaps with another format. Raises LoadError for too little room.
        """
        need = need or head.shape.need
        self.head: Final = head
        self.info: Final = replace(head.shape.info, features=need)
        self.blocks_at_once: Final = max(1, SCRATCH // head.said.size)
        scratch = self.blocks_at_once * head.said.size
        slots = scratch + _slots(head, num_slots, scratch, kv_cache_dtype)
        self._runner: Final = BlockRunner(head, slots, attention, kv_cache_dtype)
        self.scratch: Final[Slots] = self.pool.allocate(scratch)
        """The slots of `blocks_at_once` blocks."""
        width = need.layout(need.hidden_size, FeatureFormat.FLOAT32).width
        self._no_features: Final = torch.empty(0, width, dtype=head.dtype)
        if isinstance(num_slots, MemoryShare):
            num_slots.tell(slots - scratch, self._runner.kv.nbytes, head.device)

    @property
    def pool(self) -> PagePool:
        """The slots."""
        return self._runner.pool

    @property
    def weights(self) -> DraftWeights:
        """The weights that the model drafts with, and what the model shares of its target."""
        return DraftWeights(self.info, self.head.held_tensors())

    @property
    def device(self) -> torch.device:
        """The device that logits are on."""
        return self.head.device

    @property
    def feature_dtype(self) -> torch.dtype:
        """The dtype of features until they are read."""
        return self.head.dtype

    @property
    def size(self) -> int:
        """Tokens of a block."""
        return self.head.said.size

    @property
    def mask_token(self) -> int:
        """The token of the mask."""
        return self.head.said.mask_token

    @property
    def most_shown(self) -> int:
        """Tokens behind its first that a block may begin with: so many that half of it is masks."""
        return min(MOST_SHOWN, (self.size - 1) // 2)

    def extend(self, features: Sequence[Tensor], positions: Ints, slots: Slots) -> None:
        """Store keys and values of features [n, width], in parts, of tokens at positions [n] in slots [n]."""
        whole = on_device(torch.cat([self._no_features, *features]), self.device)
        self._runner.extend(whole, positions, slots)

    def draft(self, blocks: Sequence[BlockRows]) -> Tensor:
        """Run blocks of some sessions, `blocks_at_once` at most -> hidden [n, size, W]."""
        return self._runner.draft(blocks)


def _slots(head: BlockHead, num_slots: int | MemoryShare, scratch: int, kv_cache_dtype: str) -> int:
    """Slots of committed tokens, beside so many of blocks. Raises LoadError."""
    room = room_of(
        num_slots,
        head.device,
        lambda numbers: [numbers],  # no ranks share it
        weight_bytes=sum(each.nbytes for each in head.parameters()),
        max_context=head.shape.max_context,
    )
    if isinstance(room, int):
        return room
    itemsize = (STORED[kv_cache_dtype] or head.dtype).itemsize
    blocks = kv_bytes(head.geometry, scratch, 1, itemsize, None)
    return replace(room, nbytes=max(0, room.nbytes - blocks)).pages(head.geometry, 1, itemsize)


class DraftedBlocks:
    """What blocks say of the levels below their nodes.

    n   blocks      D   levels, of which a block that begins with more tokens has fewer      W   width of a state      V   vocabulary
    """

    def __init__(self, head: BlockHead, hidden: Tensor, tokens: Tensor, depths: Tensor) -> None:
        """hidden [n, D, W] by level; tokens [n] of the nodes; depths [n]: levels of each."""
        self._head: Final = head
        self._hidden: Final = hidden
        self._logits: Final = head.draft_logits(hidden)
        self.tokens: Final = tokens
        self.depths: Final = depths
        self._memory: Tensor | None = None

    @classmethod
    @torch.inference_mode()
    def of(cls, head: BlockHead, hidden: Tensor, tokens: Ints, shown: Ints) -> DraftedBlocks:
        """hidden [n, size, W] and tokens [n, size] of whole blocks."""
        first = shown + (0 if head.said.from_anchor else 1)
        count, size = tokens.shape
        places = on_device(np.minimum(first[:, None] + np.arange(size - first.min()), size - 1), head.device)
        by_level = hidden.gather(1, places.unsqueeze(-1).expand(-1, -1, hidden.shape[2]))
        own, depths = (on_device(each, head.device) for each in (tokens[np.arange(count), shown], size - first))
        return cls(head, by_level, own, depths)

    @property
    def conditions(self) -> bool:
        """Whether what is below a node depends on its token, and not on its block alone."""
        return self._head.choice.conditions

    @property
    def levels(self) -> int:
        """Levels that a block gives at most."""
        return self._hidden.shape[1]

    @torch.inference_mode()
    def logits(
        self, level: int, blocks: Tensor, tokens: Tensor, parents: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits float32 [m, V] behind nodes of a level, and how likely their likeliest child is accepted, as log-probabilities [m],
        if the drafter says so. To be asked level by level: parents [m] are rows of the level above, None for the first.
        """
        hidden = self._hidden[blocks, level]
        memory = None if parents is None or self._memory is None else self._memory[parents]
        found, self._memory = self._head.choice.conditioned(self._logits[blocks, level], hidden, tokens, memory)
        return self._head.in_target(found), self._head.choice.confidence(hidden, tokens)


def confident(ranked: Ranked, confidence: Tensor | None) -> Ranked:
    """Give the likeliest child of each node the probability that the drafter says of it [n], and others what is left, in proportion."""
    if confidence is None:
        return ranked
    own = confidence.double().clamp(min=-30.0, max=-1e-6).unsqueeze(1)
    first, others = ranked.raw[:, :1], ranked.raw[:, 1:]
    left = _log_rest(own) - _log_rest(first.clamp(min=-30.0, max=-1e-6))
    return Ranked(ranked.tokens, torch.cat((own, torch.minimum(others + left, own)), dim=1), ranked.finite)


def _log_rest(log_probabilities: Tensor) -> Tensor:
    """log(1 - p)"""
    return (-log_probabilities.expm1()).log()
