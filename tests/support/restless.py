"""A controller that switches plans at random, every few steps."""

from __future__ import annotations

import random
from dataclasses import replace

from specsplit.values import Plan
from specsplit_verifier.adaptive.controller import StaticController
from specsplit_verifier.step import StepResult

MOST_STEPS = 4
"""Under one plan."""


class RestlessController(StaticController):
    """The Controller that draws plans on a seed. All it keeps of the launched one is how long to wait."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._left = 0
        self._plan: Plan | None = None

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """Another plan once the last one has had its steps."""
        if self._plan is None or self._left <= 0:
            self._left = self._chance.randint(1, MOST_STEPS)
            self._plan = replace(
                launched,
                num_steps=self._chance.randint(0, 8),
                num_draft_tokens=self._chance.randint(1, 32),
                topk=self._chance.randint(1, 8),
                draft_ahead=self._chance.random() < 0.5,
            )
        return self._plan

    def observe(self, result: StepResult) -> None:
        """Count the step."""
        self._left -= 1
