"""How often a block drafter guesses what its target picks, position by position of its blocks."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from specsplit.model.heads import BlockHead, BlockRows, BlockRunner
from specsplit.model.pages.tables import RowPages, Slots
from specsplit.training.figures import features_of
from specsplit.training.lessons import Lesson

_AT_ONCE: Final = 64
"""Blocks in one forward."""


@torch.inference_mode()
def agreed_in_blocks(head: BlockHead, lesson: Lesson) -> Tensor:
    """Bool [depth, n]: where the head's first choice is the target's, for blocks that begin at each of n places of the answer.

    A block begins with a token of the text, the first with the one in front of the answer, and sees the features of those before it.
    What a choice depends on besides is the text's token, as if all before it had been right. No place is left if the text has too few
    tokens.
    """
    said = head.said
    tokens = np.array(lesson.text.tokens)
    places = np.arange(max(1, lesson.text.answer - 1), len(tokens) - said.depth + 1)
    if not len(places):
        return torch.empty(said.depth, 0, dtype=torch.bool)
    runner = BlockRunner(head, len(tokens) + _AT_ONCE * said.size)
    context, own = runner.pool.allocate(len(tokens)), runner.pool.allocate(_AT_ONCE * said.size)
    runner.extend(features_of(head.shape.need, lesson.hidden), np.arange(len(tokens)), context)
    right = [
        _right(head, runner, lesson, places[first : first + _AT_ONCE], context, own)
        for first in range(0, len(places), _AT_ONCE)
    ]
    return torch.cat(right, dim=1)


def _right(head: BlockHead, runner: BlockRunner, lesson: Lesson, places: Slots, context: Slots, own: Slots) -> Tensor:
    """Bool [depth, places]"""
    size, tokens = head.said.size, torch.tensor(lesson.text.tokens)
    blocks: list[BlockRows] = []
    for number, place in enumerate(places.tolist()):
        block = np.full((1, size), head.said.mask_token)
        block[0, 0] = lesson.text.tokens[place]
        slots = np.concatenate([context[:place], own[number * size : (number + 1) * size]])
        blocks.append(BlockRows(block, np.array([place]), RowPages.alone(slots, len(slots))))
    hidden = runner.draft(blocks)
    at, memory = torch.from_numpy(places), None
    right: list[Tensor] = []
    for step in range(head.said.depth):
        drafted = hidden[:, step if head.said.from_anchor else step + 1]
        found, memory = head.choice.conditioned(head.draft_logits(drafted), drafted, tokens[at + step], memory)
        right.append(head.in_target(found).argmax(-1) == lesson.chosen[at + step])
    return torch.stack(right)
