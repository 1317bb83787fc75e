"""Which children of the nodes of a level are expanded next, on the device: the best by score of each session."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def best_children(scores: Tensor, tokens: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the best `width` of the children of each session's nodes, by scores float64 and tokens int64 [B, N, c]
    -> the rows of their parents, their tokens and their scores [B, width], best first; a score of -inf is no node.

    Of equals the one is better whose parent stands first.
    """
    count, children = scores.shape[1:]
    missing = max(0, width - count * children)  # so many are padding in any case
    ranked, order = pad(scores.flatten(1), (0, missing), value=-torch.inf).sort(dim=1, descending=True, stable=True)
    best, places = ranked[:, :width].contiguous(), order[:, :width]
    parents = places.div(children, rounding_mode="floor").clamp(max=count - 1)
    return parents, pad(tokens.flatten(1), (0, missing)).gather(1, places), best


def shifts_of(shifts: Tensor, distances: Tensor) -> Tensor:
    """Select calibrations float64 [B, N, R, bins] of nodes at distances [B, N] out of those of all [B, D, R, bins]; the last is of all
    that are farther, too."""
    which = distances.clamp(max=shifts.shape[1] - 1)[..., None, None].expand(-1, -1, *shifts.shape[2:])
    return shifts.gather(1, which)
