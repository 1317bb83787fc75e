"""The `ema` controller: a tier of num_steps for every batch size, moved by what was accepted."""

from __future__ import annotations

from dataclasses import replace

from specsplit.values import Plan
from specsplit_verifier.policy.adaptive.controller import Controller
from specsplit_verifier.policy.adaptive.tiers import Slot, Tier, first_tier, next_tier
from specsplit_verifier.policy.adaptive.tiers_file import TiersConfig
from specsplit_verifier.records.step import StepResult


class EmaController(Controller):
    """SGLang's tiers. Every slot of batch sizes has a tier of its own."""

    def __init__(self, config: TiersConfig, num_steps: int) -> None:
        """`num_steps`: the tier to begin with, in slots that have it. Launched plans must speculate."""
        self._settings = config.ema
        self._slots = config.slots
        self._tiers = {size: first_tier(slot, num_steps) for size, slot in config.slots.items()}
        self._size = min(config.slots)
        """The batch size of the slot in force."""

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """The launched plan with the tier's num_steps, and as many nodes for each of them as it had, one at least."""
        self._size = max((size for size in self._slots if size <= sessions), default=min(self._slots))
        num_steps, per_step = self._steps, (launched.num_draft_tokens - 1) / launched.num_steps
        if num_steps == 0:
            return replace(launched, num_steps=0)
        nodes = max(num_steps, round(num_steps * per_step))
        return replace(launched, num_steps=num_steps, num_draft_tokens=min(256, 1 + nodes))

    def observe(self, result: StepResult) -> None:
        """Move the tier. Sessions whose request, or an older tier, gave them other steps do not count.

        Nor do those without a drafter, but for the tier of 0 steps: nobody gets one there, and it is to be left again.
        """
        under = (part for part in result.sessions if part.plan.num_steps == self._steps)
        accepted = [part.accepted for part in under if part.attached or self._steps == 0]
        self._tiers[self._size] = next_tier(self._slot, self._settings, self._tier, accepted)

    @property
    def ema(self) -> float:
        """The average of the slot in force."""
        return self._tier.ema

    @property
    def _slot(self) -> Slot:
        return self._slots[self._size]

    @property
    def _tier(self) -> Tier:
        return self._tiers[self._size]

    @property
    def _steps(self) -> int:
        return self._slot.candidate_steps[self._tier.index]
