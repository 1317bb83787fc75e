"""How heads learn that the trainer of `speculators` does not have: EAGLE's, and a layer for every step.

They learn the target's next-token distribution on its own features, several steps deep. What makes them differ is in `RECIPES` and in
the heads themselves (`specsplit.model.heads`).

    B   texts      W   tokens of the longest      N   rows: W less the depth      F   width of a feature
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence

from specsplit.model.heads import Head
from specsplit.training.figures import features_of
from specsplit.training.lessons import Lesson
from specsplit.training.rollout import rollout, rows_of
from specsplit.values import DrafterKind


@dataclass(frozen=True)
class Recipe:
    """How one kind of head learns."""

    feature_weight: float = 0.0
    """Weight of the smooth L1 distance between the head's states and the target's features (EAGLE, arXiv 2401.15077)."""
    noise: float = 0.0
    """Uniform noise on the features read, at most this large: guessed states will not be exact either (EAGLE)."""
    decay: float = 0.8
    """Step s counts decay ** s, s from 0."""
    depth: int | None = None
    """Steps rolled out at most, the head's own states read from the second on; None: as deep as is asked for."""


RECIPES: Final[dict[DrafterKind, Recipe]] = {
    # Steps two and three on its own states are HASS's (arXiv 2408.15766).
    DrafterKind.EAGLE: Recipe(feature_weight=1.0, noise=0.1, depth=3),
    # A layer per step, as DeepSeek-V3 (arXiv 2412.19437) and MiMo (arXiv 2505.07608) have one or a few.
    DrafterKind.MULTI_LAYER_EAGLE: Recipe(),
}


@dataclass(frozen=True)
class Batch:
    """Texts side by side, the shorter ones filled up at their ends."""

    tokens: Tensor
    """[B, W]"""
    features: Tensor
    """[B, W, F]"""
    counted: Tensor
    """Bool [B, W]: the target's distribution behind this token is learnt."""

    @classmethod
    def of(cls, head: Head, lessons: Sequence[Lesson]) -> Batch:
        """Put lessons side by side. The token in front of an answer counts, since the answer's first is guessed behind it."""
        tokens = pad_sequence([torch.tensor(lesson.text.tokens) for lesson in lessons], batch_first=True)
        features = pad_sequence([features_of(head.shape.need, lesson.hidden) for lesson in lessons], batch_first=True)
        at = torch.arange(tokens.shape[1])
        first = torch.tensor([lesson.text.answer - 1 for lesson in lessons])[:, None]
        length = torch.tensor([len(lesson.text.tokens) for lesson in lessons])[:, None]
        return cls(tokens, features, (at >= first) & (at < length))


def soft_cross_entropy(guessed: Tensor, wanted: Tensor, counted: Tensor) -> Tensor:
    """Mean over the rows that are counted of the cross-entropy of softmax(guessed) against `wanted`, in nats; both [rows, tokens]."""
    each = -(wanted * guessed.log_softmax(-1)).sum(-1)
    return (each * counted).sum() / counted.sum().clamp(min=1)


def loss_of(head: Head, recipe: Recipe, batch: Batch, depth: int, seed: int) -> Tensor:
    """The head's loss on one batch, all its steps weighted; `seed` is the noise's."""
    depth = min(depth, recipe.depth or depth)
    rows = rows_of(batch.tokens.shape[1], depth)
    read = batch.features[:, :rows]
    if recipe.noise:
        chance = torch.Generator().manual_seed(seed)
        read = read + recipe.noise * (2 * torch.rand(read.shape, generator=chance) - 1)
    with torch.no_grad():
        wanted = head.target.logits(batch.features).float().softmax(-1)
    total = torch.zeros(())
    for ahead, (guessed, states) in enumerate(rollout(head, batch.tokens, head.fuse(read), depth)):
        answered = slice(1 + ahead, 1 + ahead + rows)
        counted = batch.counted[:, answered].flatten()
        loss = soft_cross_entropy(guessed.float(), wanted[:, answered].flatten(0, 1), counted)
        if recipe.feature_weight and counted.any():
            loss = loss + recipe.feature_weight * smooth_l1_loss(
                states[counted], batch.features[:, answered].flatten(0, 1)[counted]
            )
        total = total + recipe.decay**ahead * loss
    return total


def batches_of(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """The texts of each step of an epoch, by their numbers, in an order of the epoch's own.

    Those of one step have together, filled up to the longest, `batch_tokens` tokens at most, or are one.
    """
    batches: list[list[int]] = []
    longest = 0
    for number in np.random.default_rng([seed, epoch]).permutation(len(lengths)).tolist():
        longest = max(longest, lengths[number])
        if not batches or longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = lengths[number]
        batches[-1].append(number)
    return batches
