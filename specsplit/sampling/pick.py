"""The one way in which a token is picked, by target and drafter, greedy or sampled: the argmax of perturbed logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specsplit.sampling.batch import SamplingRows
from specsplit.sampling.filters import restrict
from specsplit.sampling.noise import Noise, gumbel


def perturb(logits: Tensor, rows: SamplingRows, positions: Sequence[int], noise: Noise = gumbel) -> Tensor:
    """What the pick is the argmax of, [R, V]: float32, or as the logits are if every row is picked by them.

    Row r picks the token at sequence index positions[r] (its logits were computed at index positions[r] - 1) under its session's sampling.
    A greedy row is its logits; any other is logits / T with -inf outside the allowed set, plus the noise of (seed, position).
    The input is never changed, and returned as it is if every row is greedy.
    """
    if rows.plain:
        return logits
    changed = _changed(logits, rows, positions, noise)
    return changed if rows.changed is None else logits.float().index_put((rows.changed,), changed)


def pick(logits: Tensor, rows: SamplingRows, positions: Sequence[int], noise: Noise = gumbel) -> list[int | None]:
    """The tokens picked, one per row; None for a row that has no pick. See `perturb` and `has_pick`.

    Only rows that are not picked by their logits are copied.
    """
    if rows.plain:
        return likeliest_tokens(logits)
    changed = _likeliest(_changed(logits, rows, positions, noise))
    return _listed(changed if rows.changed is None else _likeliest(logits).index_put((rows.changed,), changed))


def likeliest_tokens(perturbed: Tensor) -> list[int | None]:
    """The argmax of each row [R, V]; None for a row that has no pick."""
    return _listed(_likeliest(perturbed))


def has_pick(best: Tensor) -> Tensor:
    """Whether a row whose largest perturbed logit is `best` [...] has a pick, greedy or sampled: whether that is a finite number.

    torch's argmax, max and topk count NaN as the largest. So this is False for a row with any NaN, for one with nothing but -inf, and
    for one with +inf, which is what an overflow leaves. Tokens at -inf beside a finite one are merely impossible.
    """
    return best.isfinite()


def _changed(logits: Tensor, rows: SamplingRows, positions: Sequence[int], noise: Noise) -> Tensor:
    """The rows [C, V] whose pick is not the argmax of their logits."""
    scaled = (logits if rows.changed is None else logits[rows.changed]) / rows.temperatures
    return restrict(scaled, rows.filters).add_(
        _noise_rows(noise, rows.seeds, [positions[r] for r in rows.drawn], scaled)
    )


def _likeliest(perturbed: Tensor) -> Tensor:
    """The argmax of each row, int64 [R]; -1 for a row that has no pick."""
    likeliest = perturbed.argmax(dim=-1, keepdim=True)
    return likeliest.where(has_pick(perturbed.gather(-1, likeliest)), -1).squeeze(-1)


def _listed(likeliest: Tensor) -> list[int | None]:
    tokens: list[int] = likeliest.tolist()
    return [token if token >= 0 else None for token in tokens]


def _noise_rows(noise: Noise, seeds: Sequence[int], positions: Sequence[int], like: Tensor) -> Tensor:
    """Noise [R, V] for each row; nodes of one session at one depth share theirs, which is computed once."""
    where: dict[tuple[int, int], int] = {}
    rows = [where.setdefault(key, len(where)) for key in zip(seeds, positions, strict=True)]
    distinct = noise([seed for seed, _ in where], [position for _, position in where], like.shape[1], like.device)
    return distinct if len(where) == len(rows) else distinct[torch.tensor(rows, device=like.device)]
