"""What a controller is, and the one that changes nothing."""

from __future__ import annotations

from typing import Protocol

from specsplit.values import Estimate, Plan
from specsplit_verifier.chooser import StepChooser
from specsplit_verifier.step import StepResult


class Controller(Protocol):
    """Says how much to speculate. It asks nobody for the time, so that it can be tried without an engine."""

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """The plan in force for a batch of so many sessions, given the plan that the verifier was started with."""
        ...

    @property
    def chooser(self) -> StepChooser | None:
        """What chooses every step within the plan; None: a step takes all that the plan allows."""
        ...

    def shown(self, plan: Plan) -> Plan:
        """What is told of a session's plan to people who look."""
        ...

    def observe(self, result: StepResult) -> None:
        """A step is over. What was made under another plan than the one in force does not count."""
        ...

    def estimate(self) -> Estimate | None:
        """Why the plan in force is in force; None: nothing has been seen yet."""
        ...


class StaticController:
    """The Controller that leaves the plan as it was launched."""

    @property
    def chooser(self) -> None:
        """Nobody chooses: a step takes all that the plan allows."""

    def plan(self, launched: Plan, sessions: int) -> Plan:
        return launched

    def shown(self, plan: Plan) -> Plan:
        """The plan itself."""
        return plan

    def observe(self, result: StepResult) -> None:
        """Nothing follows from it."""

    def estimate(self) -> Estimate | None:
        """There is nothing to weigh."""
        return None
