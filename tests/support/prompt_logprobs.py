"""Log-probabilities of a prompt's tokens, as transformers computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specsplit.values import TokenLogprob
from tests.support.rounding import assert_same_log_probabilities


def expected(model: Any, prompt: Sequence[int]) -> torch.Tensor:
    """log_softmax [len(prompt) - 1, V] of the logits behind each token of the prompt but the last."""
    with torch.inference_mode():
        logits = model(torch.tensor([list(prompt)])).logits[0, :-1]
    return torch.log_softmax(logits.float(), dim=-1)


def assert_told(told: Sequence[TokenLogprob], rows: torch.Tensor, most: int) -> None:
    """Hold what was told to these rows [n, V]: the token's own, those of the `most` likeliest, and which these are."""
    tokens = rows.shape[1]
    assert len(told) == len(rows)
    found = torch.tensor([[each.logprob, *(top.logprob for top in each.top)] for each in told])
    own = rows.gather(1, torch.tensor([[each.token] for each in told]))
    best = rows.sort(descending=True).values[:, : min(most, tokens)]
    assert_same_log_probabilities(found, torch.cat((own, best), dim=1), tokens)
    if most:
        named = rows.gather(1, torch.tensor([[top.token for top in each.top] for each in told]))
        assert_same_log_probabilities(found[:, 1:], named, tokens)
