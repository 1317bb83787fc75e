"""The one way in which a token is picked, by target and drafter, greedy or sampled: the argmax of perturbed logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.sampling.filters import restrict
from specsplit.sampling.noise import Noise, gumbel
from specsplit.values import Sampling

_COLDEST: Final = 1e-20
"""Temperatures below this count as this: logits (below 1e18) divided by it are still finite, and any difference still decides."""


def perturb(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise = gumbel) -> Tensor:
    """What the pick is the argmax of, float32 [R, V].

    Row r picks the token at sequence index positions[r] (its logits were computed at index positions[r] - 1) under samplings[r].
    A greedy row is its logits; any other is logits / T with -inf outside the allowed set, plus the noise of (seed, position).
    The input is never changed, and returned as it is if every row is greedy.
    """
    rows = [row for row, sampling in enumerate(samplings) if not sampling.greedy]
    if not rows:
        return logits
    chosen = [samplings[row] for row in rows]
    index = None if len(rows) == len(samplings) else torch.tensor(rows, device=logits.device)
    temperatures = torch.tensor([max(sampling.temperature, _COLDEST) for sampling in chosen], device=logits.device)
    scaled = restrict((logits if index is None else logits[index]) / temperatures[:, None], chosen)
    noisy = scaled + _noise_rows(
        noise, [sampling.seed for sampling in chosen], [positions[row] for row in rows], logits
    )
    return noisy if index is None else logits.index_put((index,), noisy)


def pick(
    logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], noise: Noise = gumbel
) -> list[int | None]:
    """The tokens picked, one per row; None for a row that has no pick. See `perturb` and `has_pick`."""
    return likeliest_tokens(perturb(logits, samplings, positions, noise))


def likeliest_tokens(perturbed: Tensor) -> list[int | None]:
    """The argmax of each row [R, V]; None for a row that has no pick."""
    likeliest = perturbed.argmax(dim=-1, keepdim=True)
    picked: list[int] = likeliest.where(has_pick(perturbed.gather(-1, likeliest)), -1).squeeze(-1).tolist()
    return [token if token >= 0 else None for token in picked]


def has_pick(best: Tensor) -> Tensor:
    """Whether a row whose largest perturbed logit is `best` [...] has a pick, greedy or sampled: whether that is a finite number.

    torch's argmax, max and topk count NaN as the largest. So this is False for a row with any NaN, for one with nothing but -inf, and
    for one with +inf, which is what an overflow leaves. Tokens at -inf beside a finite one are merely impossible.
    """
    return best.isfinite()


def _noise_rows(noise: Noise, seeds: Sequence[int], positions: Sequence[int], like: Tensor) -> Tensor:
    """Noise [R, V] for each row; nodes of one session at one depth share theirs, which is computed once."""
    where: dict[tuple[int, int], int] = {}
    rows = [where.setdefault(key, len(where)) for key in zip(seeds, positions, strict=True)]
    distinct = noise([seed for seed, _ in where], [position for _, position in where], like.shape[1], like.device)
    return distinct if len(where) == len(rows) else distinct[torch.tensor(rows, device=like.device)]
