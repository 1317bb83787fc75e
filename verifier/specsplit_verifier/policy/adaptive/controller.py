"""What decides how much to speculate: this one changes nothing, and the others are kinds of it."""

from __future__ import annotations

from specsplit.values import Estimate, Plan
from specsplit_verifier.policy.chooser import StepChooser
from specsplit_verifier.records.step import StepResult


class Controller:
    """Leaves the plan as it was launched. A controller asks nobody for the time, so that it can be tried without an engine."""

    @property
    def chooser(self) -> StepChooser | None:
        """What chooses every step within the plan; None: a step takes all that the plan allows."""
        return None

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """The plan in force for a batch of so many sessions, given the plan that the verifier was started with."""
        return launched

    def shown(self, plan: Plan) -> Plan:
        """What is told of a session's plan to people who look."""
        return plan

    def observe(self, result: StepResult) -> None:
        """A step is over. What was made under another plan than the one in force does not count."""

    def estimate(self) -> Estimate | None:
        """Why the plan in force is in force; None: nothing has been seen yet, or there is nothing to weigh."""
        return None
