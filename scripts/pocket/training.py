"""One training loop for every pocket model: cosine schedule, progress on one line, resume from the last checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn


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


def forget_another_targets(state: Path, digest: str) -> None:
    """Delete the checkpoint in `state` if it was learnt from a target of other weights than `digest`."""
    note = state.with_suffix(".target")
    if state.exists() and (not note.exists() or note.read_text() != digest):
        print("the target has changed since this training began: starting again", flush=True)
        state.unlink()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(digest)


def fit(
    model: nn.Module,
    loss_of_step: Callable[[int], Tensor],
    schedule: Schedule,
    state_file: Path,
    save: Callable[[], None],
) -> None:
    """Train `model` for `schedule.steps` steps, going on from `state_file` if an earlier run left one.

    `loss_of_step(step)` draws its own batch, seeded by `step`, so that a resumed run sees what an unbroken one would have.
    """
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": schedule.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=schedule.peak_lr, betas=(0.9, 0.95),
    )  # fmt: skip
    first = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        print(f"resuming at step {first} of {schedule.steps}", flush=True)
    state_file.parent.mkdir(parents=True, exist_ok=True)
    started, smooth = time.monotonic(), None
    for step in range(first, schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(step)
        loss = loss_of_step(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        done = step + 1
        if done % 20 == 0:
            left = (time.monotonic() - started) / (done - first) * (schedule.steps - done)
            print(
                f"step {done}/{schedule.steps}  loss {smooth:.3f}  lr {schedule.lr(step):.1e}  {left / 60:.0f} min left",
                flush=True,
            )
        if done % schedule.save_every == 0 or done == schedule.steps:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done}, state_file)
            save()
