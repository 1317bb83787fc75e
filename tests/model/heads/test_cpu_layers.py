"""Heads whose modules are replaced for a CPU say the same as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specsplit.features import FeatureFormat
from specsplit.model.heads import Head
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.layers.trial import Causal
from tests.model.heads.published import EVERYBODY
from tests.support.rounding import assert_same_sums


def said(head: Head) -> list[Tensor]:
    """Hidden states and logits of every step, on a few tokens of chance."""
    torch.manual_seed(2)
    tokens, positions = torch.randint(0, head.shape.vocabulary.size, (6,)), torch.arange(6)
    need = head.shape.need
    features = torch.randn(6, need.layout(need.hidden_size, FeatureFormat.FLOAT32).width)
    states, found = head.fuse(features), list[Tensor]()
    for step in range(head.shape.num_steps):
        hidden, states = head(step, tokens, states, positions, forward_batch=Causal(torch.device("cpu")))
        found += [hidden, head.logits(step, hidden)]
    return found


@pytest.mark.parametrize("name", EVERYBODY)
def test_every_published_head_says_the_same(load: Callable[..., Any], name: str) -> None:
    head = load(name).head
    with torch.inference_mode():
        expected = said(head)
        head.use_cpu_layers()
        assert any(isinstance(each, PackedLinear) for each in head.modules())
        for found, other in zip(said(head), expected, strict=True):
            assert_same_sums(found, other)
