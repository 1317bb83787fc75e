"""Held-out figures of a head: how often it guesses what its target picks, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from specsplit.features import FeatureNeed
from specsplit.model.heads import Head
from specsplit.training.lessons import Lesson
from specsplit.training.meter import Meter
from specsplit.training.rollout import rollout, rows_of


@dataclass(frozen=True)
class Figures:
    """Figures on texts that the head has not learnt from."""

    texts: int
    tokens: int
    """Places at which the head was asked, once for every step."""
    agreement: tuple[float, ...]
    """Step by step: the share of places where the head's first choice is the target's, the steps before taken as right."""
    accept_length: float
    """Mean tokens per step of the target with a chain as deep as the figures: 1 and the first choices before one is wrong."""


def agreed(head: Head, lesson: Lesson, depth: int) -> Tensor:
    """Bool [depth, n]: where the head's first choice is the target's, for each of n places within the answer, `depth` steps deep.

    No place is left if the text has too few tokens.
    """
    rows = rows_of(len(lesson.chosen), depth)
    if rows < 1:
        return torch.empty(depth, 0, dtype=torch.bool)
    tokens = torch.tensor([lesson.text.tokens])
    states = head.fuse(features_of(head.shape.need, lesson.hidden)[None, :rows])
    counted = torch.arange(rows) >= lesson.text.answer - 2  # row i guesses token i + 2 in the first step
    right: list[Tensor] = []
    for ahead, (guessed, _) in enumerate(rollout(head, tokens, states, depth)):
        choice = guessed.argmax(-1)
        if head.target_ids is not None:
            choice = head.target_ids[choice]
        right.append((choice == lesson.chosen[1 + ahead : 1 + ahead + rows])[counted])
    return torch.stack(right)


def features_of(need: FeatureNeed, hidden: Tensor) -> Tensor:
    """What a head reads of hidden states [T, layers, H], the first of which were taken for it: [T, feature width]."""
    return hidden[:, : len(need.layers)].flatten(1)


@torch.inference_mode()
def measure(ask: Callable[[Lesson], Tensor], lessons: Iterable[Lesson], meter: Meter, count: int) -> Figures:
    """Measure on `count` lessons, each of which `ask` says of where a head is right: bool [depth, places].

    Figures of no places at all are zeros, and a length of 1.
    """
    found: list[Tensor] = []
    for number, lesson in enumerate(lessons, 1):
        found.append(ask(lesson))
        meter(number, count)
    right = torch.cat(found, dim=1).float()
    places = right.shape[1]
    if not places:
        return Figures(len(found), 0, (0.0,) * len(right), 1.0)
    return Figures(len(found), places, tuple(right.mean(1).tolist()), 1 + right.cumprod(0).sum(0).mean().item())
