"""A head for a target, from files of text to a folder that is served: `train_head`.

1. The order is compared with what the out folder holds: nothing, or an unfinished run of the same order, which goes on (`work`).
2. Files become prompts (`examples`, `prompts`); the target writes answers to them, and reads all texts (`teaching`, `teacher`).
3. Texts and hidden states are kept (`lessons`).
4. The head learns: by the trainer of speculators (`trainer`) or by own code (`own`).
5. The head is measured on the held-out texts (`figures`), and a card is written beside it (`card`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import safe_open
from torch import Tensor

from specsplit.errors import InvalidRequest
from specsplit.features import LAST
from specsplit.model.heads import load_block_head, load_head
from specsplit.model.heads.config import architecture, usual_layers
from specsplit.text.json_file import read_json
from specsplit.training import own
from specsplit.training.block_figures import agreed_in_blocks
from specsplit.training.card import Record, card
from specsplit.training.figures import Figures, agreed, measure
from specsplit.training.lessons import Lesson, Lessons
from specsplit.training.meter import Metering
from specsplit.training.order import WITH_TRAINER, HeadOrder
from specsplit.training.published import publish_checkpoint
from specsplit.training.teaching import count_of, left_out, prompts_of, teach
from specsplit.training.trainer import Trainer, options_of
from specsplit.training.work import open_work

Say = Callable[[str], None]


def train_head(order: HeadOrder, say: Say, metering: Metering) -> Figures:
    """Train a head as ordered. `say` is told in a line each what a user should know, `metering` shows how far each part is.

    Raises SpecsplitError, saying what to do, if it cannot be.
    """
    trainer = Trainer.find(order.trainer, order.target) if order.kind in WITH_TRAINER else None
    layers, made = _layers(order), prompts_of(order)
    count, held_out = count_of(order, made)
    work, found = open_work(order)
    for line in (f"going on with the run in {order.out}" * found, left_out(made, order)):
        if line:
            say(line)
    lessons = Lessons(work, count, held_out)
    teach(order, made.prompts, lessons, layers if trainer is None else (*layers, _depth_of(order)), metering)
    steps = _learn(order, trainer, lessons, layers, metering)
    figures = _measure(order, lessons, metering)
    learnt = [lessons.text(index) for index in lessons.learnt]
    record = Record(
        order=order,
        by="own code" if trainer is None else f"the trainer of speculators {trainer.versions['speculators']}",
        steps=steps,
        learnt=len(learnt),
        tokens=sum(len(text.tokens) for text in learnt),
        answers=sum(len(text.tokens) - text.answer for text in learnt),
        left_out=left_out(made, order),
        layers=layers,
        parameters=_parameters(order.out),
        figures=figures,
    )
    (order.out / "README.md").write_text(card(record), encoding="utf-8")
    shutil.rmtree(work)
    return figures


def _learn(
    order: HeadOrder, trainer: Trainer | None, lessons: Lessons, layers: tuple[int, ...], metering: Metering
) -> int:
    """Train, and write the head to the out folder -> steps."""
    with metering("training") as meter:
        if trainer is None:
            return own.train(order, lessons, order.out, meter)
        checkpoint, steps = trainer.train(lessons, options_of(order, lessons, layers), meter)
    publish_checkpoint(checkpoint, order.target, order.out, causal=order.causal)
    return steps


def _measure(order: HeadOrder, lessons: Lessons, metering: Metering) -> Figures:
    held_out = map(lessons.lesson, lessons.held_out)
    with metering("held-out texts") as meter:
        return measure(_asking(order), held_out, meter, len(lessons.held_out))


def _asking(order: HeadOrder) -> Callable[[Lesson], Tensor]:
    """What says of a lesson where the head is right."""
    if order.kind.drafts_blocks:
        return partial(agreed_in_blocks, load_block_head(order.out, order.target, order.kind))
    return partial(agreed, load_head(order.out, order.target, order.kind), depth=order.ahead)


def _parameters(folder: Path) -> int:
    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        return sum(int(np.prod(opened.get_slice(name).get_shape())) for name in opened.keys() if name != "d2t")  # noqa: SIM118


def _depth_of(order: HeadOrder) -> int:
    """Decoder layers of the target."""
    return architecture(read_json(order.target / "config.json")).num_hidden_layers


def _layers(order: HeadOrder) -> tuple[int, ...]:
    """The hidden states that the head reads. Raises InvalidRequest if the target does not have them."""
    if order.kind not in WITH_TRAINER:
        return (LAST,)
    depth = _depth_of(order)
    layers = order.layers or usual_layers(depth)
    if len(set(layers)) < len(layers) or min(layers) < 0 or max(layers) > depth:
        raise InvalidRequest(
            "--layers",
            f"{', '.join(map(str, layers))} of a target of {depth} layers; expected different ones from 0 to {depth}",
        )
    return layers
