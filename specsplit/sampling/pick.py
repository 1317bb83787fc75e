"""The one way in which a token is picked, by target and drafter, greedy or sampled: the argmax of perturbed logits."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.sampling.batch import COLDEST, SamplingRows
from specsplit.sampling.filters import restrict
from specsplit.sampling.noise import Noise, gumbel

Paths: TypeAlias = Sequence[Sequence[int]]


def perturb(
    logits: Tensor, rows: SamplingRows, positions: Sequence[int], paths: Paths = (), noise: Noise = gumbel
) -> Tensor:
    """What the pick is the argmax of, [R, V]: float32, or as the logits are if every row is picked by them.

    Row r picks the token at sequence index positions[r] (its logits were computed at index positions[r] - 1) under its session's sampling.
    First comes what `processors` does. That is all for a greedy row; any other is divided by T, gets -inf outside the allowed set, and the
    noise of (seed, position). paths[r] are the tokens that row r's text has beyond the committed ones; they may be left out where nothing
    is penalised. The input is never changed, and returned as it is if every row is picked by its logits.
    """
    if rows.plain:
        return logits
    changed = _changed(logits, rows, positions, paths, noise)
    return changed if rows.changed_at is None else logits.float().index_put((rows.changed_at,), changed)


def pick(
    logits: Tensor, rows: SamplingRows, positions: Sequence[int], paths: Paths = (), noise: Noise = gumbel
) -> list[int | None]:
    """The tokens picked, one per row; None for a row that has no pick. See `perturb` and `has_pick`.

    Only rows that are not picked by their logits are copied.
    """
    if rows.plain:
        return likeliest_tokens(logits)
    perturbed = _changed(logits, rows, positions, paths, noise)
    if rows.changed_at is None:
        return likeliest_tokens(perturbed)
    changed = _likeliest(perturbed)
    return _listed(_likeliest(logits).index_put((rows.changed_at,), changed))


def divisors_of(temperatures: Sequence[float]) -> NDArray[np.float32] | None:
    """What logits [R, V] are divided by at these temperatures, [R, 1], a greedy row by 1; None: all by 1."""
    if all(temperature in (0, 1) for temperature in temperatures):
        return None
    return np.array([max(temperature, COLDEST) if temperature else 1 for temperature in temperatures], np.float32)[
        :, None
    ]


def pick_noisy(
    logits: Tensor, divisors: NDArray[np.float32] | None, noise: Tensor, at: Sequence[int] | None = None
) -> list[int | None]:
    """`pick` on a CPU for rows that are divided and get noise, or, if they are greedy, none: the same numbers by a quarter of the calls.

    `noise` [N, V], which this may write over, is of the rows `at`; None: of all.
    """
    with np.errstate(all="ignore"):  # what is no number has no pick
        noisy, own = noise.numpy(), logits.float().numpy()
        scaled = own if divisors is None else own / divisors
        if at is None:
            noisy += scaled
            return _likeliest_of(noisy)
        rows = scaled.copy() if divisors is None else scaled
        rows[at] += noisy
    return _likeliest_of(rows)


def likeliest_tokens(perturbed: Tensor) -> list[int | None]:
    """Find the argmax of each row [R, V]; None for a row that has no pick."""
    if perturbed.device.type != "cpu":
        return _listed(_likeliest(perturbed))
    return _likeliest_of(_on_host(perturbed))


def _likeliest_of(rows: NDArray[np.floating]) -> list[int | None]:
    # Behind a forward no code is in the processor's caches any more, so that every call counts; values are looked at one by one.
    tokens: list[int] = rows.argmax(axis=1).tolist()
    return [token if isfinite(row[token]) else None for row, token in zip(rows, tokens, strict=True)]


def has_pick(best: Tensor) -> Tensor:
    """Whether a row whose largest perturbed logit is `best` [...] has a pick, greedy or sampled: whether that is a finite number.

    torch's max, argmax and topk count NaN as the largest. So this is False for a row with any NaN, for one with nothing but -inf, and
    for one with +inf, which is what an overflow leaves. Tokens at -inf beside a finite one are merely impossible.
    """
    return best.isfinite()


def _changed(logits: Tensor, rows: SamplingRows, positions: Sequence[int], paths: Paths, noise: Noise) -> Tensor:
    """Compute the rows [C, V] whose pick is not the argmax of their logits."""
    own_paths = [paths[row] for row in rows.changed] if rows.penalties is not None else ()
    done = processed(logits if rows.changed_at is None else logits[rows.changed_at], rows, own_paths)
    if not rows.sampled:
        return done
    scaled = (done if rows.sampled_at is None else done[rows.sampled_at]) / rows.temperatures
    noisy = restrict(scaled, rows.filters)
    noisy += noise(rows.seeds, rows.of_sampled(positions), scaled.shape[1], scaled.device)
    return noisy if rows.sampled_at is None else done.float().index_put((rows.sampled_at,), noisy)


def processed(changed: Tensor, rows: SamplingRows, paths: Paths) -> Tensor:
    """Bias and penalise the logits [C, V] of changed rows: a copy of them, or they themselves if no session asks for either.

    paths: of each of the C rows; they may be left out where nothing is penalised.
    """
    if rows.bias is None and rows.penalties is None:
        return changed
    logits = changed.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if rows.bias is not None:
        bias, biased = rows.bias
        bias.add_to(logits, biased)
    if rows.penalties is not None:
        penalties, penalised = rows.penalties
        penalties.impose_on(logits, penalised, [paths[place] for place in penalised.places])
    return logits


def _likeliest(perturbed: Tensor) -> Tensor:
    """Find the argmax of each row, int64 [R]; -1 for a row that has no pick."""
    if perturbed.device.type == "cpu":
        return torch.from_numpy(_likeliest_on_host(perturbed))
    best, likeliest = perturbed.max(dim=-1)  # of equals the first, and NaN above all, as argmax does
    return likeliest.where(has_pick(best), -1)


def _likeliest_on_host(perturbed: Tensor) -> NDArray[np.int64]:
    """Do the same by numpy, which on a CPU takes a tenth of the time of torch's max. It takes the first of equals and NaN above all too."""
    rows = _on_host(perturbed)
    likeliest = rows.argmax(axis=1)
    best = rows[np.arange(len(rows)), likeliest]
    return np.where(np.isfinite(best), likeliest, -1)


def _on_host(perturbed: Tensor) -> NDArray[np.floating]:
    """The numbers as an array on the host, widened where their type is bfloat16, which numpy does not have."""
    return perturbed.numpy() if perturbed.dtype is torch.float32 else perturbed.to(_at_least_single(perturbed)).numpy()


def _at_least_single(perturbed: Tensor) -> torch.dtype:
    return torch.promote_types(perturbed.dtype, torch.float32)


def _listed(likeliest: Tensor) -> list[int | None]:
    tokens: list[int] = likeliest.tolist()
    return [token if token >= 0 else None for token in tokens]
