"""What bounds how much a session may speculate: this one leaves the launched plan, and the others are kinds of it."""

from __future__ import annotations

from typing import ClassVar

from specsplit.values import Plan
from specsplit_verifier.records.step import StepResult


class Controller:
    """Leaves the plan as it was launched. A controller asks nobody for the time, so that it can be tried without an engine."""

    chooses: ClassVar = False
    """True if a step takes of the plan what pays; False: a step takes all that the plan allows."""

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """The plan in force for a batch of so many sessions, given the plan that the verifier was started with."""
        return launched

    def observe(self, result: StepResult) -> None:
        """A step is over. What was made under another plan than the one in force does not count."""
