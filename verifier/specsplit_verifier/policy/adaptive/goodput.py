"""The `goodput` controller: the nodes that commit the most tokens per second, by measured acceptance and cost.

Its plan is what a step may spend at most. What a step does spend is chosen for each, so nothing has to be switched when the load or the
text changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from specsplit.values import Plan
from specsplit_verifier.policy.adaptive.controller import Controller

MAX_STEPS: Final = 16
"""Levels below the root that a step may verify."""


class GoodputController(Controller):
    """Goes by committed tokens per second."""

    chooses = True

    def __init__(self, max_draft_tokens: int) -> None:
        """`max_draft_tokens`: of a session in one step at most."""
        self._max_draft_tokens = max_draft_tokens
        self._bounds: Plan | None = None

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """The bounds; a launched plan that does not speculate stays as it is."""
        if self._bounds is None:
            tokens = self._max_draft_tokens
            bounds = replace(launched, num_steps=min(MAX_STEPS, tokens - 1), num_draft_tokens=tokens)
            self._bounds = bounds if launched.speculates else launched
        return self._bounds
