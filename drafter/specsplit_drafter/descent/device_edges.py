"""Edges on the device, computed of raw log-probabilities as on the host: calibrated (calibration.py), and rounded as they are sent."""

from __future__ import annotations

import torch
from torch import Tensor

from specsplit.tree import LEAST_EDGE, ROUNDING
from specsplit_drafter.drafts.calibration import LOGIT_LIMIT


def edges_of(raw: Tensor, shifts: Tensor) -> Tensor:
    """Compute edges: raw float64 [..., c], likeliest first, below nodes with `shifts` float64 [..., R, bins] -> edges float64 [..., c].

    Numbers that are not finite become -inf. Rounding makes those equal that calibration has pooled, whatever their last digits are.
    """
    last = shifts.shape[-1] - 1
    ranks = torch.arange(raw.shape[-1], device=raw.device).clamp(max=shifts.shape[-2] - 1)
    by_child = shifts.index_select(-2, ranks)
    possible = raw.isfinite()
    bounded = raw.where(possible, LEAST_EDGE).clamp(max=-1e-12)
    logits = (bounded - (-bounded.expm1()).log()).clamp(max=LOGIT_LIMIT)
    places = ((logits + LOGIT_LIMIT) * (last / (2 * LOGIT_LIMIT))).clamp(0, last)
    lower = places.floor().clamp(max=last - 1)
    low, high = (by_child.gather(-1, (lower.long() + i).unsqueeze(-1)).squeeze(-1) for i in (0, 1))
    calibrated = logits + low + (high - low) * (places - lower)
    own = -torch.logaddexp(torch.zeros_like(calibrated), -calibrated)
    edges = own.minimum(own.where(possible, 0.0).cummin(-1).values)
    rounded = (edges.clamp(min=LEAST_EDGE).float().double() + ROUNDING) - ROUNDING
    return rounded.masked_fill(~possible, -torch.inf)
