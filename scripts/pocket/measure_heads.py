"""Held-out figures of a head: how often it guesses what the target picks, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from scripts.pocket import vocabulary
from scripts.pocket.continuations import extend
from scripts.pocket.corpus import split
from scripts.pocket.draft import load
from scripts.pocket.lesson import Lesson, teach
from scripts.pocket.measure import NEW, PROMPT, PROMPTS, ROWS, WIDTH, held_out_windows
from scripts.pocket.rollout import rollout, rows_of
from specsplit.model.heads import Head, load_head
from specsplit.values import DrafterKind

DEPTH = 4
WINDOWS = 100


@dataclass(frozen=True)
class HeldHead:
    """Figures on text that neither the target nor its head was trained on."""

    tokens: int
    """Held-out tokens that the head was asked about, and as often as it goes deep."""
    agreement_on_text: float
    """How often the head's first choice is the target's, in the first step."""
    overlap_on_text: float
    """Mean over positions of the sum over tokens of min(target's probability, head's), in the first step."""
    agreement_on_greedy: tuple[float, ...]
    """Step by step, along the target's own greedy continuations of held-out prompts."""
    chain_on_greedy: float
    """Mean tokens per step of the target with a chain as long as the head is deep: 1 and the first choices before one is wrong."""


@dataclass(frozen=True)
class Answers:
    """What a head said of every row and step; [steps, rows] each."""

    agreed: Tensor
    overlap: Tensor


def ask(head: Head, lesson: Lesson, first: int) -> Answers:
    """`head` run DEPTH steps deep on `lesson`, guesses of index `first` and later counted."""
    rows = rows_of(lesson.tokens.shape[1], DEPTH)
    probabilities = lesson.logits.softmax(-1)
    chosen = probabilities.argmax(-1)
    counted = torch.arange(rows) >= first - 2  # row i guesses index i + 2 in the first step
    agreed, overlap = [], []
    for ahead, (guessed, _) in enumerate(rollout(head, lesson.tokens, head.fuse(lesson.features[:, :rows]), DEPTH)):
        answered = slice(1 + ahead, 1 + ahead + rows)
        wanted, guessed_by_row = probabilities[:, answered], guessed.unflatten(0, (-1, rows))
        choice = guessed_by_row.argmax(-1)
        if head.target_ids is not None:
            wanted, choice = wanted[..., head.target_ids], head.target_ids[choice]
        agreed.append((choice == chosen[:, answered])[:, counted].flatten())
        overlap.append(torch.minimum(wanted, guessed_by_row.softmax(-1)).sum(-1)[:, counted].flatten())
    return Answers(torch.stack(agreed), torch.stack(overlap))


@torch.inference_mode()
def _walk(target: LlamaForCausalLM, head: Head, rows: Tensor, first: int) -> Answers:
    batches = [ask(head, teach(target, batch, head.shape.need.layers), first) for batch in rows.split(ROWS)]
    return Answers(torch.cat([b.agreed for b in batches], 1), torch.cat([b.overlap for b in batches], 1))


def measure_head(kind: DrafterKind, models: Path) -> HeldHead:
    """Measure the head `kind` of the target below `models`."""
    target, head = load(models / "target"), load_head(models / kind.value, models / "target", kind)
    corpus = vocabulary.encode(vocabulary.load(models / "target"), split()[1])
    text = _walk(target, head, held_out_windows(corpus, WIDTH, WINDOWS), 2)
    greedy = extend(target, held_out_windows(corpus, PROMPT, PROMPTS), NEW, temperature=0.0, seed=0)
    own = _walk(target, head, greedy, PROMPT).agreed.float()
    return HeldHead(
        tokens=text.agreed.shape[1],
        agreement_on_text=text.agreed[0].float().mean().item(),
        overlap_on_text=text.overlap[0].mean().item(),
        agreement_on_greedy=tuple(own.mean(1).tolist()),
        chain_on_greedy=1 + own.cumprod(0).sum(0).mean().item(),
    )
