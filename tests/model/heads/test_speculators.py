"""A folder that vllm-project/speculators wrote, against the logits that its own model gave (see record_speculators)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from specsplit.model import Row, RowPages
from specsplit.model.heads import HeadRunner, load_head
from specsplit.values import DrafterKind
from tests.model.heads.published import TARGET_FACTS, write
from tests.model.heads.record_speculators import DRAFT_VOCAB, HIDDEN, LENGTH, RECORD, STEPS, VOCAB
from tests.support.rounding import assert_same_sums


def test_logits_on_true_features_and_on_own_states_agree(tmp_path: Path) -> None:
    with safe_open(RECORD, framework="pt") as opened:
        record = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        facts = json.loads(opened.metadata()["config.json"])
    folder = write(tmp_path / "head", facts, {n: t for n, t in record.items() if not n.startswith(("input", "logits"))})
    target = write(
        tmp_path / "target",
        {**TARGET_FACTS, "vocab_size": VOCAB, "hidden_size": HIDDEN},
        {"model.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN)},
    )
    head = load_head(folder, target, DrafterKind.EAGLE3)
    assert head.shape.need.layers == (1, 3, 5)
    drafted = torch.arange(DRAFT_VOCAB) + record["d2t"]
    tokens, fused = record["input.tokens"], head.fuse(record["input.features"])
    for last in range(LENGTH - STEPS):
        runner = HeadRunner(head, 0, LENGTH)
        rows, states = (
            [Row.chunk(tokens[: last + 1].numpy(), RowPages.alone(np.arange(last + 1), last + 1))],
            fused[: last + 1],
        )
        for step in range(STEPS):
            hidden, states = runner.forward(rows, states)
            logits = head.logits(0, hidden[-1])[drafted]
            assert_same_sums(logits, record[f"logits.{step}"][last])
            end = last + step + 2
            rows, states = [Row.chunk(tokens[end - 1 : end].numpy(), RowPages.alone(np.arange(end), end))], states[-1:]
