"""Heads on another device than the host's: whatever their forwards make is there.

torch's `FakeTensorMode` computes shapes and devices in the place of numbers, and refuses an operation on tensors of two devices as a GPU
would; the device `meta` stands for any that is not the host's. Numbers of a GPU are held to the host's in `tests/gpu/test_heads.py`.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from specsplit.model import PageTable, Row
from specsplit.model.heads import BlockHead, BlockRows, Head
from specsplit_drafter.drafts.draft_model import ExpansionInput
from specsplit_drafter.kinds.block_model import BlockModel, DraftedBlocks
from specsplit_drafter.kinds.heads import HeadModel
from tests.drafter.block_toys import BLOCKS, MASK, block_head
from tests.drafter.head_toys import HEADS, STACKED, VOCABULARY, head_of

AnyHead = TypeVar("AnyHead", Head, BlockHead)
ELSEWHERE: Final = torch.device("meta")
COMMITTED: Final = 5
"""Tokens with features."""
TREE: Final = 2
"""A root and a node below it."""


def moved(head: AnyHead) -> AnyHead:
    """Put all tensors of a head elsewhere, as `to` does where they have numbers."""
    for module in head.requires_grad_(False).modules():
        parts: Any = module
        for tensors in (parts._parameters, parts._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    away = torch.empty(tensor.shape, dtype=tensor.dtype, device=ELSEWHERE)
                    parameter = isinstance(tensor, nn.Parameter)
                    tensors[name] = nn.Parameter(away, requires_grad=False) if parameter else away
    return head.eval()


def run(head: Head) -> list[torch.Tensor]:
    """Run committed tokens and a tree through every step, the first with features from the host -> logits."""
    model, found = HeadModel(head, 64), list[torch.Tensor]()
    width = len(head.shape.need.layers) * head.target.hidden_size
    for step, pool in enumerate(model.pools):
        table = PageTable(pool)
        table.reserve(COMMITTED + TREE)
        rows = [Row.chunk(range(1, COMMITTED + 1), table.upto(COMMITTED), [COMMITTED - 1])]
        sources = [] if step == 0 else [np.arange(COMMITTED)]
        if head.shape.recurrent:
            rows.append(Row.tree([6, 7], [-1, 0], table.upto(COMMITTED + TREE)))
            sources.append(np.arange(TREE))
        features = [torch.empty(COMMITTED, width)] if step == 0 else []
        found.append(model.run(step, ExpansionInput(rows, features, sources)))
    return found


@pytest.mark.parametrize("name", [*HEADS, *STACKED])
def test_all_that_a_head_makes_is_on_its_device(name: str) -> None:
    head = head_of(name)
    assert head.geometries
    with FakeTensorMode():
        logits = run(moved(head))
    assert len(logits) == head.shape.num_steps
    for each in logits:
        assert (each.device, each.shape[1]) == (ELSEWHERE, VOCABULARY.size)


@pytest.mark.parametrize("name", BLOCKS)
def test_all_that_a_block_drafter_makes_is_on_its_device(name: str) -> None:
    head = block_head(name)
    with FakeTensorMode():
        model = BlockModel(moved(head), 64)
        table = PageTable(model.pool)
        table.reserve(COMMITTED + 2 * model.size)
        tokens = np.full((2, model.size), MASK)
        tokens[:, 0] = 3
        places = np.arange(COMMITTED)
        model.extend([torch.empty(COMMITTED, 3 * head.target.hidden_size)], places, places)
        rows = BlockRows(tokens, np.array([COMMITTED, COMMITTED + 1]), table.upto(COMMITTED + 2 * model.size))
        drafted = DraftedBlocks.of(head, model.draft([rows]), tokens, np.zeros(2, np.int64))
        both = torch.arange(2, device=ELSEWHERE)
        for level in range(2):
            logits, confidence = drafted.logits(level, both, drafted.tokens, both if level else None)
            assert (logits.device, tuple(logits.shape)) == (ELSEWHERE, (2, VOCABULARY.size))
            assert confidence is None or confidence.device == ELSEWHERE


def test_a_tensor_that_stays_behind_is_told() -> None:
    head = head_of("eagle")
    assert head.geometries
    with FakeTensorMode():
        moved(head).get_submodule("fc").weight = nn.Parameter(torch.empty(32, 64), requires_grad=False)
        with pytest.raises(RuntimeError, match=r"same device|different devices"):
            run(head)
