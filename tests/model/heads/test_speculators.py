"""Folders that vllm-project/speculators wrote, against the logits that its own models gave (tests/data/heads)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specsplit.model import Row, RowPages
from specsplit.model.heads import Head, HeadRunner, load_head
from specsplit.values import DrafterKind
from tests.model.heads.published import TARGET_FACTS, write
from tests.support.rounding import assert_same_sums

DATA = Path(__file__).parents[2] / "data" / "heads"
EAGLE3 = [
    "eagle3-llama",
    "eagle3-qwen3",
    "eagle3-norm-before-residual",
    "eagle3-two-states",
    "eagle3-biases",
    "eagle3-yarn",
]
STEPS = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of the size that the heads were made for. They have embeddings of their own, so its are of no account."""
    return write(
        tmp_path_factory.mktemp("target"),
        {**TARGET_FACTS, "vocab_size": 64, "hidden_size": 16},
        {"model.embed_tokens.weight": torch.zeros(64, 16)},
    )


def rows(tokens: Tensor, last: int, first: int = 0) -> list[Row]:
    """Tokens first to last of a text whose tokens have slots of their own numbers."""
    return [Row.chunk(tokens[first : last + 1].numpy(), RowPages.alone(np.arange(last + 1), last + 1))]


def drafted(head: Head, hidden: Tensor) -> Tensor:
    """Logits of the head's own tokens, by way of those of the target's."""
    logits = head.logits(0, hidden)
    return logits if head.target_ids is None else logits[..., head.target_ids]


@pytest.mark.parametrize("name", EAGLE3)
def test_logits_on_true_features_and_on_own_states_agree(name: str, target: Path) -> None:
    head, record = load_head(DATA / name, target, DrafterKind.EAGLE3), load_file(DATA / name / "record.safetensors")
    tokens, fused = record["tokens"], head.fuse(record["features"])
    for last in range(len(tokens) - STEPS + 1):
        runner = HeadRunner(head, 0, len(tokens))
        hidden, states = runner.forward(rows(tokens, last), fused[: last + 1])
        for step in range(STEPS):
            assert_same_sums(drafted(head, hidden[-1]), record[f"logits.{step}"][last])
            following = last + step + 1
            if following < len(tokens):
                hidden, states = runner.forward(rows(tokens, following, following), states[-1:])
