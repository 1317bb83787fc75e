"""Training of a head by this project's own code, for the kinds that the trainer of `speculators` does not have."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.heads import EagleHead, Head, MtpHead, TargetEmbeddings, save_head
from specsplit.model.heads.checkpoint import Checkpoint
from specsplit.model.heads.config import architecture
from specsplit.text.json_file import read_json
from specsplit.training.fit import Schedule, fit
from specsplit.training.lessons import Lessons
from specsplit.training.meter import Meter
from specsplit.training.order import HeadOrder
from specsplit.training.recipe import RECIPES, Batch, batches_of, loss_of
from specsplit.values import DrafterKind

STATE: Final = "head.pt"
_FINAL_NORMS: Final = ("model.norm.weight", "model.language_model.norm.weight", "language_model.model.norm.weight")
_WARM_UP: Final = 20
"""Of so many steps one is of the warm-up."""


def build(order: HeadOrder) -> Head:
    """A head of layers like the target's that has learnt nothing; the norms before the LM head are the target's.

    Raises LoadError for a target whose layers or LM head no such head can have.
    """
    torch.manual_seed(order.seed)
    ends = TargetEmbeddings.load(order.target)
    layer = copy.deepcopy(architecture(read_json(order.target / "config.json")))
    layer.dtype = torch.float32
    if order.kind is DrafterKind.EAGLE:
        return EagleHead(layer, ends, bias=False)
    if order.intermediate_size is not None:
        layer.intermediate_size = order.intermediate_size
    head = MtpHead([layer] * order.ahead, ends)
    norm = _final_norm(order.target)
    head.load_state_dict({f"steps.{step}.final_norm.weight": norm for step in range(order.ahead)}, strict=False)
    return head


def train(order: HeadOrder, lessons: Lessons, out: Path, meter: Meter) -> int:
    """Train a head on lessons into a folder, going on from where an earlier run was -> steps."""
    head, recipe = build(order), RECIPES[order.kind]
    indices = [index for index in lessons.learnt if len(lessons.text(index).tokens) > order.ahead + 1]
    if not indices:
        raise LoadError(f"no text has more than the {order.ahead + 1} tokens that a head of depth {order.ahead} needs")
    lengths = [len(lessons.text(index).tokens) for index in indices]
    batches = [
        each for epoch in range(order.epochs) for each in batches_of(lengths, order.batch_tokens, order.seed, epoch)
    ]

    def loss_of_step(step: int) -> Tensor:
        batch = Batch.of(head, [lessons.lesson(indices[number]) for number in batches[step]])
        return loss_of(head, recipe, batch, order.ahead, step)

    steps = len(batches)
    schedule = Schedule(
        steps, order.learning_rate, warmup_steps=max(1, steps // _WARM_UP), save_every=max(1, min(100, steps // 4))
    )
    fit(head, loss_of_step, schedule, lessons.folder / STATE, lambda: None, meter)
    save_head(head, out, dtype=torch.bfloat16)
    return steps


def _final_norm(target: Path) -> Tensor:
    """The weight of the norm before the target's LM head. Raises LoadError if it is not found by one of its usual names."""
    checkpoint = Checkpoint(target)
    for name in _FINAL_NORMS:
        if name in checkpoint.names:
            read: dict[str, Any] = checkpoint.read([name])
            return read[name].float()
    raise LoadError(
        f"model folder {target} has none of {', '.join(_FINAL_NORMS)}, with which the norms of such a head begin"
    )
