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
EAGLE3 = sorted(folder.name for folder in DATA.glob("eagle3-*"))
PEAGLE = sorted(folder.name for folder in DATA.glob("peagle-*"))
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
    # Behind its own states the library's mask leaves a window where the last true feature is; engines move it along, as we do.
    head, record = load_head(DATA / name, target, DrafterKind.EAGLE3), load_file(DATA / name / "record.safetensors")
    tokens, fused = record["tokens"], head.fuse(record["features"])
    for last in range(len(tokens) - STEPS + 1):
        runner = HeadRunner(head, 0, len(tokens))
        hidden, states = runner.forward(rows(tokens, last), fused[: last + 1])
        for step in range(1 if name == "eagle3-windows" else STEPS):
            assert_same_sums(drafted(head, hidden[-1]), record[f"logits.{step}"][last])
            following = last + step + 1
            if following < len(tokens):
                hidden, states = runner.forward(rows(tokens, following, following), states[-1:])


@pytest.mark.parametrize("name", PEAGLE)
def test_logits_behind_masks_agree(name: str, target: Path) -> None:
    """Whatever tokens the nodes below a true feature have, and whatever their parents left."""
    head, record = load_head(DATA / name, target, DrafterKind.EAGLE3), load_file(DATA / name / "record.safetensors")
    tokens, fused = record["tokens"], head.fuse(record["features"])
    for row, (anchor, depth) in enumerate(zip(record["anchors"].tolist(), record["depths"].tolist(), strict=True)):
        if anchor < 0:  # drawn before the text begins
            continue
        runner = HeadRunner(head, 0, len(tokens) + STEPS)
        hidden, states = runner.forward(rows(tokens, anchor), fused[: anchor + 1])
        others = torch.cat([tokens[: anchor + 1], torch.arange(depth)])
        for node in range(anchor + 1, anchor + 1 + depth):
            hidden, states = runner.forward(rows(others, node, node), states[-1:])
        assert_same_sums(drafted(head, hidden[-1]), record["logits"][row])
