"""Heads of every kind on a GPU: what they propose is what they propose on the CPU, whose features they get.

These tests have never run: they were written on a machine without a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specsplit.model.heads import BlockHead, Head
from specsplit.values import Sampling
from specsplit_drafter.drafts.proposer import Children, Proposer
from specsplit_drafter.kinds.block_model import BlockModel
from specsplit_drafter.kinds.block_proposer import BlockProposer
from specsplit_drafter.kinds.heads import HeadModel
from specsplit_drafter.kinds.model_proposer import ModelProposer
from tests.drafter.block_toys import BLOCKS, block_head
from tests.drafter.descents import CHILDREN
from tests.drafter.head_toys import HEADS, STACKED, VOCABULARY, event_of, head_of, layout_of
from tests.drafter.toys import Handled
from tests.support.rounding import APART, assert_same_log_probabilities

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
PROMPT = list(range(1, 12))
DEVICES = ("cuda:0", "cpu")


def head_on(name: str, device: str) -> tuple[Head, Proposer]:
    head = head_of(name).to(device)
    return head, ModelProposer(HeadModel(head, 512), CHILDREN)


def blocks_on(name: str, device: str) -> tuple[BlockHead, Proposer]:
    head = block_head(name).to(device)
    return head, BlockProposer(BlockModel(head, 512), CHILDREN)


def children_of(name: str, device: str, sampling: Sampling) -> list[Children]:
    """Of the root of a text, and of two nodes below it."""
    head, proposer = blocks_on(name, device) if name in BLOCKS else head_on(name, device)
    session = Handled(proposer, PROMPT, sampling=sampling)
    proposer.feed(session.key, event_of(head, PROMPT, 0, len(PROMPT) - 1), layout_of(head))
    found = [session.expand()]
    session.grow((0, 20), (0, 21))
    found.append(session.expand(1, 2))
    return [each for each in found if isinstance(each, Children)]


@pytest.mark.parametrize("name", [*HEADS, *STACKED, *BLOCKS])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.0, top_k=20, seed=11)], ids=["greedy", "sampled"]
)
def test_children_are_those_on_the_cpu(name: str, sampling: Sampling) -> None:
    ours, theirs = (children_of(name, device, sampling) for device in DEVICES)
    assert len(ours) == len(theirs) == 2
    for one, other in zip(ours, theirs, strict=True):
        assert np.isfinite(other.log_probabilities[:, 0]).all()
        assert_same_log_probabilities(one.log_probabilities, other.log_probabilities, VOCABULARY.size, 8 * APART)
        assert (one.tokens == other.tokens).mean() > 0.5, "neighbours that are as likely may change places"
