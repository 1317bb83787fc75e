"""A controller that switches plans at random, every few steps."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest

from specsplit.values import Plan
from specsplit_verifier.policy.adaptive.controller import Controller
from specsplit_verifier.records.step import StepResult

MOST_STEPS = 4
"""Under one plan."""
LARGEST = Plan(num_steps=8, topk=8, num_draft_tokens=32)
SMALL = Plan(num_steps=4, topk=4, num_draft_tokens=8)
"""Enough to be wrong about, and quickly drafted."""


class RestlessController(Controller):
    """The Controller that draws plans on a seed. All it keeps of the launched one is how long to wait."""

    def __init__(self, seed: int, largest: Plan = LARGEST) -> None:
        self._largest = largest
        self._chance = random.Random(seed)
        self._left = 0
        self._plan: Plan | None = None

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """Another plan once the last one has had its steps."""
        if self._plan is None or self._left <= 0:
            self._left = self._chance.randint(1, MOST_STEPS)
            self._plan = replace(
                launched,
                num_steps=self._chance.randint(0, self._largest.num_steps),
                num_draft_tokens=self._chance.randint(1, self._largest.num_draft_tokens),
                topk=self._chance.randint(1, self._largest.topk),
                draft_ahead=self._chance.random() < 0.5,
            )
        return self._plan

    def observe(self, result: StepResult) -> None:
        """Count the step."""
        self._left -= 1


def restless(monkeypatch: pytest.MonkeyPatch, largest: Plan = SMALL) -> None:
    """Every engine that is made from now on in this process has such a controller, each on a seed of its own."""
    seeds = count(31)
    monkeypatch.setattr(
        "specsplit_verifier.engine.engine.controller_for", lambda *_: RestlessController(next(seeds), largest)
    )
