"""Block drafters are asked along a text as the library that wrote them asks its own (tests/data/heads)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specsplit.model.heads import load_block_head
from specsplit.training.block_figures import agreed_in_blocks
from specsplit.training.lessons import Lesson, Sample
from tests.model.heads.test_blocks import DATA, EVERY, target_of


def choices(record: dict[str, Tensor], number: int) -> Tensor:
    """The drafter's own tokens of each position of a block, each given the text before it; int64 [size]."""
    if "scores" in record:
        best = record["scores"][number].argmax(-1, keepdim=True)
        return record["candidates"][number].gather(-1, best).squeeze(-1)
    return record["conditioned" if "conditioned" in record else "logits"][number].argmax(-1)


@pytest.mark.parametrize("name", EVERY)
def test_a_target_that_picks_what_the_block_says_agrees_with_it(name: str, tmp_path: Path) -> None:
    record = load_file(DATA / name / "record.safetensors")
    head = load_block_head(DATA / name, target_of(tmp_path, record))
    tokens, depth = record["tokens"], head.said.depth
    hidden = record["features"].unflatten(1, (len(head.shape.need.layers), -1))
    told = 0
    for number, anchor in enumerate(record["anchors"].tolist()):
        drafted = choices(record, number)[head.said.size - depth :]
        drafted = drafted if head.target_ids is None else head.target_ids[drafted]
        chosen = torch.full((len(tokens) + depth,), -1)
        chosen[anchor : anchor + depth] = drafted
        lesson = Lesson(Sample(0, tuple(tokens.tolist()), 1), hidden, chosen[: len(tokens)])
        right = agreed_in_blocks(head, lesson)
        assert right.shape == (depth, max(0, len(tokens) - depth))
        if 1 <= anchor <= len(tokens) - depth:
            assert right[:, anchor - 1].all()
            told += 1
    assert told


def test_a_text_that_is_too_short_has_no_places(tmp_path: Path) -> None:
    record = load_file(DATA / "dflash" / "record.safetensors")
    head = load_block_head(DATA / "dflash", target_of(tmp_path, record))
    lesson = Lesson(Sample(0, (1, 2), 1), torch.zeros(2, 3, 16), torch.zeros(2, dtype=torch.long))
    assert agreed_in_blocks(head, lesson).shape == (head.said.depth, 0)
