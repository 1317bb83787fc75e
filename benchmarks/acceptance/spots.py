"""The places drafted at: along the target's own continuations of held-out prompts, as when it serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.acceptance.trees import Spot
from scripts.pocket.continuations import extend

PROMPT = 64
NEW = 96
EVERY = 12


@dataclass(frozen=True)
class Text:
    """One committed sequence [PROMPT + NEW] and its spots, the last one first (the caches can only be cut)."""

    tokens: Tensor
    spots: list[Spot]


def texts(target: LlamaForCausalLM, prompts: Tensor, temperature: float, seed: int) -> Iterator[Text]:
    """Continue `prompts` [rows, PROMPT] at `temperature` and put a spot on every 12th token of what came out."""
    for number, row in enumerate(extend(target, prompts, NEW, temperature, seed)):
        roots = range(PROMPT + NEW - 1, PROMPT, -EVERY)
        yield Text(
            row, [Spot(root, int(row[root]), temperature, (seed << 32) + (number << 16) + root) for root in roots]
        )
