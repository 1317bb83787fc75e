"""Log-probabilities of the tokens that the target picked, for sessions that ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice

import numpy as np
import torch
from torch import Tensor

from specsplit.model.tensors.transfer import on_device
from specsplit.values import TokenLogprob
from specsplit_verifier.records.step import Accepted, TreeInput


def with_logprobs(
    accepted: Mapping[int, Accepted], trees: Sequence[TreeInput], logits: Tensor
) -> Mapping[int, Accepted]:
    """Add log-probabilities to the accepted path of every tree that wants some.

    `logits` [n, V] are the target's own, behind every token of the trees end to end. Of these only the rows that picked something are read.
    """
    if all(tree.logprobs is None for tree in trees):
        return accepted
    starts = accumulate((len(tree.draft.tokens) for tree in trees), initial=0)
    asking = [
        (tree, start, tree.logprobs, accepted[tree.session])
        for tree, start in zip(trees, starts, strict=False)
        if tree.logprobs is not None and tree.session in accepted
    ]
    if not asking:  # who asked got nothing
        return accepted
    rows = [start + i for _, start, _, made in asking for i in made.path]
    picked = [token for tree, _, _, made in asking for token in made.commits(tree.draft)]
    read = iter(logprobs_of(logits[rows], picked, max(wanted for _, _, wanted, _ in asking)))
    results = dict(accepted)
    for tree, _, wanted, made in asking:
        own = [replace(each, top=each.top[:wanted]) for each in islice(read, len(made.path))]
        results[tree.session] = replace(made, logprobs=own)
    return results


def logprobs_of(logits: Tensor, tokens: Sequence[int], most: int) -> list[TokenLogprob]:
    """Compute those of one token for each row of logits [R, V], and of the `most` likeliest of the row.

    No more than that is copied off the device.
    """
    values, likeliest = measured(logits, on_device(np.array(tokens, dtype=np.int64), logits.device), most)
    return listed(tokens, values.tolist(), likeliest.tolist())


def measured(logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Compute on the device, for logits [R, V] and tokens int64 [R] -> (float32 [R, 1 + m], int64 [R, m]), m = `most` or V.

    These are the log-probabilities of the tokens and of the m likeliest of each row, and which those are.
    """
    whole = logits.float().logsumexp(dim=1, keepdim=True)
    own = logits.gather(1, tokens[:, None])
    best = logits.topk(min(most, logits.shape[1]), dim=1)
    return torch.cat((own, best.values), dim=1).float() - whole, best.indices


def listed(
    tokens: Sequence[int], values: Sequence[Sequence[float]], likeliest: Sequence[Sequence[int]]
) -> list[TokenLogprob]:
    """Make the values of R tokens from arrays."""
    return [
        TokenLogprob(token, value, tuple(map(TokenLogprob, these, values_of_these)))
        for token, (value, *values_of_these), these in zip(tokens, values, likeliest, strict=True)
    ]
