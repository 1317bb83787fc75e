"""Tiers of num_steps, moved by an exponential moving average (EMA) of accepted drafts: SGLang's adaptive speculative decoding.

Source: SGLang, `speculative/adaptive_spec_params.py` (pull requests 21599, 24055), with its defaults. Everything here is a pure
function of what it is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class EmaSettings:
    """How the average moves, and how often it decides."""

    ema_alpha: float = 0.2
    """Weight of one batch in the average."""
    update_interval: int = 5
    """Batches between two decisions."""
    warmup_batches: int = 10
    """Batches before the first of them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The tiers that batches of at least a certain size may have."""

    candidate_steps: tuple[int, ...]
    """num_steps of every tier, ascending; 0 is a tier without speculation."""
    up_hysteresis: float = 0.0
    """The average must be so much higher than usual to climb."""
    down_hysteresis: float = -0.25
    """The average may be so much higher than usual, and the tier falls all the same."""
    ceiling_coeff: float = 0.0
    """A tier above the average times this falls; 0 turns that off."""


@dataclass(frozen=True, slots=True)
class Tier:
    """The tier in force in one slot, and its average."""

    index: int
    """Index into the slot's candidates."""
    ema: float
    """The average of accepted drafts per session and step, the bonus not counted."""
    batches: int = 0
    """Batches observed so far."""


DEFAULT_SLOTS: Final = {1: Slot((1, 3, 5, 7)), 8: Slot((0, 1, 3)), 32: Slot((0, 1)), 64: Slot((0,))}
"""By the least number of sessions in a batch."""


def first_tier(slot: Slot, num_steps: int) -> Tier:
    """The tier of `num_steps` if it is a candidate, else the middle one."""
    steps = slot.candidate_steps
    index = steps.index(num_steps) if num_steps in steps else len(steps) // 2
    return Tier(index, steps[index] - 1.0)


def next_tier(slot: Slot, settings: EmaSettings, tier: Tier, accepted: Sequence[int]) -> Tier:
    """Compute the next tier after a batch; it stays if no session counts. `accepted`: accepted drafts of each session."""
    if not accepted:
        return tier
    batches, ema = tier.batches + 1, tier.ema
    if slot.candidate_steps[tier.index] > 0:
        ema += settings.ema_alpha * (sum(accepted) / len(accepted) - ema)
    seen = replace(tier, ema=ema, batches=batches)
    decisive = batches > settings.warmup_batches and (batches - settings.warmup_batches) % settings.update_interval == 0
    return _decide(slot, seen) if decisive else seen


def _decide(slot: Slot, tier: Tier) -> Tier:
    steps, index = slot.candidate_steps, tier.index
    if steps[index] == 0:
        return _probe(slot, tier)
    while index > 0 and tier.ema <= _boundary(steps[index - 1]) + slot.down_hysteresis:
        index -= 1
    if index == tier.index:
        while index + 1 < len(steps) and tier.ema > steps[index] - 0.5 + slot.up_hysteresis:
            index += 1
    if index <= tier.index and slot.ceiling_coeff > 0:
        ceiling = max(1, math.ceil(tier.ema * slot.ceiling_coeff))
        while index > 0 and steps[index] > ceiling:
            index -= 1
    return replace(tier, index=index)


def _boundary(below: int) -> float:
    """The average at which a tier falls to the one `below` it."""
    return 0.5 if below == 0 else below - 0.5


def _probe(slot: Slot, tier: Tier) -> Tier:
    """Without drafts nothing can be learnt: try the next tier, if there is one."""
    if tier.index + 1 == len(slot.candidate_steps):
        return tier
    index = tier.index + 1
    return replace(tier, index=index, ema=slot.candidate_steps[index] - 1.0 if tier.ema < 0 else tier.ema)
