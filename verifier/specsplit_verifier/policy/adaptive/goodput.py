"""The `goodput` controller: what commits the most tokens per second, by acceptance and cost as measured.

Its plan is what a step may spend at most. What a step does spend is chosen for each by `StepChooser`, so nothing has to be switched when
the load or the text changes. What is shown as the plan is what was spent lately.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from specsplit.values import Estimate, Plan
from specsplit_verifier.policy.adaptive.controller import Controller
from specsplit_verifier.policy.chooser import StepChooser
from specsplit_verifier.records.step import StepResult

MAX_STEPS: Final = 16
"""Levels below the root that a step may verify."""
STICKY: Final = 0.8
"""What is shown changes when what was spent lately is so far from it: more than a rounding, so that it does not flutter."""


class GoodputController(Controller):
    """Goes by committed tokens per second."""

    def __init__(self, max_draft_tokens: int) -> None:
        """`max_draft_tokens`: of a session in one step at most."""
        self._max_draft_tokens = max_draft_tokens
        self._bounds: Plan | None = None
        self._shown: tuple[int, int] | None = None
        """num_steps and num_draft_tokens."""
        self._told: tuple[tuple[int, int], Plan, Plan] | None = None
        """What was shown when this was last asked, the plan that was asked for, and what is told of it: most sessions have the same."""
        self._chooser = StepChooser()

    @property
    def chooser(self) -> StepChooser:
        """What a step spends within the bounds."""
        return self._chooser

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """The bounds; a launched plan that does not speculate stays as it is."""
        if self._bounds is None:
            tokens = self._max_draft_tokens
            bounds = replace(launched, num_steps=min(MAX_STEPS, tokens - 1), num_draft_tokens=tokens)
            self._bounds = bounds if launched.speculates else launched
        return self._bounds

    def shown(self, plan: Plan) -> Plan:
        """A plan with what is spent of it lately; what was fixed otherwise stays."""
        shown, told = self._shown, self._told  # once each: metrics ask from another thread
        if shown is None or self._bounds is None:
            return plan
        if told is None or told[:2] != (shown, plan):
            num_steps, num_draft_tokens = min(plan.num_steps, shown[0]), min(plan.num_draft_tokens, shown[1])
            told = self._told = shown, plan, replace(plan, num_steps=num_steps, num_draft_tokens=num_draft_tokens)
        return told[2]

    def observe(self, result: StepResult) -> None:
        """A step is over."""
        self.chooser.observe(result)
        depth, tokens = self.chooser.account.depth.mean, 1 + self.chooser.account.nodes.mean
        num_steps, num_draft_tokens = self._shown or (depth, tokens)
        self._shown = _stuck(num_steps, depth), _stuck(num_draft_tokens, tokens)

    def estimate(self) -> Estimate | None:
        """Estimate by what was seen lately."""
        return self.chooser.account.estimate()


def _stuck(shown: float, now: float) -> int:
    """The number to show."""
    return round(now if abs(now - shown) > STICKY else shown)
