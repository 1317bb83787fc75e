"""A training loop: cosine schedule, progress, resume from the last checkpoint."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from specsplit.training.meter import Meter


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    steps: int
    peak_lr: float
    warmup_steps: int = 100
    weight_decay: float = 0.1
    clip: float = 1.0
    save_every: int = 100

    def lr(self, step: int) -> float:
        """Learning rate of `step`: linear warm-up, then a cosine down to a twentieth of the peak."""
        if step < self.warmup_steps:
            return self.peak_lr * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.peak_lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def fit(
    model: nn.Module,
    loss_of_step: Callable[[int], Tensor],
    schedule: Schedule,
    state_file: Path,
    save: Callable[[], None],
    meter: Meter,
) -> None:
    """Train what requires a gradient of `model` for `schedule.steps` steps, going on from `state_file` if an earlier run left one.

    `loss_of_step(step)` draws its own batch, seeded by `step`, so that a resumed run sees what an unbroken one would have. `save` is
    called whenever the state has been saved.
    """
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    decayed = [tensor for tensor in trained.values() if tensor.ndim >= 2]
    plain = [tensor for tensor in trained.values() if tensor.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": schedule.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=schedule.peak_lr, betas=(0.9, 0.95),
    )  # fmt: skip
    first = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    state_file.parent.mkdir(parents=True, exist_ok=True)
    smooth: float | None = None
    for step in range(first, schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(step)
        loss = loss_of_step(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained.values(), schedule.clip)
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        done = step + 1
        meter(done, schedule.steps, f"loss {smooth:.3f}")
        if done % schedule.save_every == 0 or done == schedule.steps:
            state = {
                "model": {name: tensor.detach() for name, tensor in trained.items()},
                "optimizer": optimizer.state_dict(),
            }
            unfinished = state_file.with_suffix(".new")
            torch.save({**state, "step": done}, unfinished)
            os.replace(unfinished, state_file)
            save()
