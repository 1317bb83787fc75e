"""The target's own continuations: what a draft will have to guess, so what it should learn from.

A batch of corpus prompts is continued by the target with its KV cache: every third batch greedily, the others by sampling at
temperature 1. Batches are seeded by their number and saved one by one, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from scripts.pocket.target import windows

PROMPT = 64
NEW = 192
ROWS = 64
GREEDY_ONE_IN = 3
SEED_BASE = 1_000_000  # apart from the seeds of the target's and the draft's own training windows


@dataclass(frozen=True)
class Continuations:
    """Sequences of prompt and continuation, int64 [sequences, PROMPT + NEW], and the target they came from."""

    target_digest: str
    sequences: Tensor

    def batch(self, step: int, rows: int) -> Tensor:
        """`rows` random sequences, int64 [rows, PROMPT + NEW], the same for the same `step`."""
        rng = np.random.default_rng([step, 1])
        return self.sequences[torch.from_numpy(rng.integers(0, len(self.sequences), size=rows))].long()


@torch.inference_mode()
def extend(model: LlamaForCausalLM, prompts: Tensor, new: int, temperature: float, seed: int) -> Tensor:
    """Continue `prompts` [rows, width] by `new` tokens; temperature 0 is argmax. Returns int64 [rows, width + new].

    End tokens are ordinary tokens here: the corpus, too, goes on with the next file.
    """
    generator = torch.Generator().manual_seed(seed)
    cache, tokens, fed = DynamicCache(config=model.config), prompts, prompts
    for _ in range(new):
        logits = model(input_ids=fed, past_key_values=cache, logits_to_keep=1).logits[:, -1].float()
        if temperature == 0:
            fed = logits.argmax(-1, keepdim=True)
        else:
            fed = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, fed], dim=1)
    return tokens


def _load(file: Path, digest: str) -> list[Tensor]:
    if not file.exists():
        return []
    state = torch.load(file, weights_only=True)
    if state["target_digest"] != digest:
        print("the target has changed since these continuations were made: starting again", flush=True)
        return []
    return list(state["sequences"].split(ROWS))


def generate(target: LlamaForCausalLM, digest: str, corpus: np.ndarray, file: Path, batches: int) -> Continuations:
    """`batches` batches of the target's continuations of windows of `corpus` (uint16 [tokens]), kept in `file`."""
    done = _load(file, digest)[:batches]
    first, started = len(done), time.monotonic()
    for number in range(first, batches):
        prompts = windows(corpus, SEED_BASE + number, ROWS, PROMPT)
        temperature = 0.0 if number % GREEDY_ONE_IN == 0 else 1.0
        done.append(extend(target, prompts, NEW, temperature, seed=number).to(torch.int16))
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"target_digest": digest, "sequences": torch.cat(done)}, file)
        left = (time.monotonic() - started) / (number + 1 - first) * (batches - number - 1)
        print(f"continuations {number + 1}/{batches}  {left / 60:.1f} min left", flush=True)
    return Continuations(digest, torch.cat(done))
