"""The base of controllers, which bound how much a session may speculate. It leaves the launched plan."""

from __future__ import annotations

from typing import ClassVar

from specsplit.values import Plan
from specsplit_verifier.records.step import StepResult


class Controller:
    """Leaves the launched plan. A controller never reads a clock, so that it can be tried without an engine."""

    chooses: ClassVar = False
    """True if a step takes only nodes that pay, within the plan; False: it takes all that the plan allows."""

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """The plan in force for a batch of so many sessions, given the plan that the verifier was started with."""
        return launched

    def observe(self, result: StepResult) -> None:
        """Learn from a step that is over. Sessions under another plan than the one in force do not count."""
