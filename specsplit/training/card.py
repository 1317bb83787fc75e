"""The card beside a head: what it is, how it was made, and how well it guesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specsplit.features import FeatureNeed
from specsplit.training.figures import Figures
from specsplit.training.order import HeadOrder
from specsplit.values import DrafterKind

_WHAT: Final[Mapping[DrafterKind, str]] = {
    DrafterKind.EAGLE: "An EAGLE head (arXiv 2401.15077)",
    DrafterKind.EAGLE3: "An EAGLE-3 head (arXiv 2503.01840)",
    DrafterKind.DFLASH: "A block drafter (DFlash 2)",
    DrafterKind.DSPARK: "A block drafter (DSpark)",
    DrafterKind.MULTI_LAYER_EAGLE: "Layers for multi-token prediction (arXiv 2412.19437)",
}


@dataclass(frozen=True)
class Record:
    """What a training run was."""

    order: HeadOrder
    by: str
    """The program that trained, with its version."""
    steps: int
    learnt: int
    """Texts that were learnt from."""
    tokens: int
    """Tokens of these, prompts included."""
    answers: int
    """Tokens of these that were learnt."""
    left_out: str
    """What of the data was left out, in words; empty: nothing."""
    layers: tuple[int, ...]
    """Hidden states that the head reads, as FeatureNeed counts them."""
    parameters: int
    figures: Figures


def card(record: Record) -> str:
    """Write the card in Markdown."""
    order, figures = record.order, record.figures
    written = (
        "as they stand in the files"
        if order.as_written
        else f"written by the target itself at temperature {order.temperature:g}; held-out ones greedily"
    )
    rows = "\n".join(f"| {step} | {share:.3f} |" for step, share in enumerate(figures.agreement, 1))
    return f"""---
library_name: specsplit
tags: [speculative-decoding, {order.kind.value}]
---

# {order.kind.value} head for {order.target.resolve().name}

{_WHAT[order.kind]} that guesses what this target writes, and is of no use for anything else:
{record.parameters:,} parameters, bfloat16. It reads hidden states {_numbers(record.layers)} of the target (k: behind k decoder layers).
What it lacks is the target's.

    specsplit serve drafter --kind {order.kind.value} --model THIS_FOLDER --target TARGET_FOLDER

## Data

{", ".join(file.name for file in order.data)}: {record.learnt:,} texts of {record.tokens:,} tokens were learnt from,
{record.answers:,} of these tokens as answers, {written}.
{record.left_out or "Nothing was left out."}

## Training

`specsplit train-head`, by {record.by}: {record.steps:,} steps of at most {order.batch_tokens:,} tokens,
{order.epochs} epochs, learning rate {order.learning_rate:g}, {order.ahead} tokens ahead{_sight(order)}, seed {order.seed}.

## Held-out figures

{figures.texts:,} texts that were not learnt from, {figures.tokens:,} places in their answers. Step 1 knows the target's hidden states up to
the last token, step k up to the one k - 1 before it; the tokens between are the text's.

| step | the head's first choice is the target's |
|---|---|
{rows}

Tokens per step of the target with a chain of {len(figures.agreement)} drafted tokens: **{figures.accept_length:.2f}**.
"""


def _sight(order: HeadOrder) -> str:
    """What the tokens of a block see, where the order says so."""
    windows = f", windows of {', '.join(map(str, order.windows))} tokens (0: all) by layer" if order.windows else ""
    return windows + ", causal blocks" * order.causal


def _numbers(layers: tuple[int, ...]) -> str:
    return FeatureNeed(layers).layer_names
