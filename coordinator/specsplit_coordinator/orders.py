"""What an operator wants different in the whole cluster while it runs. Pure: whoever carries it out is called back."""

from __future__ import annotations

from specsplit.values import Control, Plan, PlanChanges, TraceChanges, TraceScope
from specsplit_coordinator.watchable import Watchable


class Orders(Watchable):
    """The changes in force, gathered from every call since the coordinator started."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = PlanChanges()
        """The changes to the verifiers' own default plans."""
        self.control = Control()
        """Who is to decide what the plan does not say."""
        self.tracing = TraceChanges()
        """The changes to what everybody's own settings trace."""

    def change_plan(self, changes: PlanChanges, control: Control | None = None, *, reset: bool = False) -> None:
        """Add changes to those in force, or put them in their place. Raises InvalidRequest for a value out of range."""
        changes.over(Plan())
        control = control or Control()
        self.plan = changes if reset else changes.after(self.plan)
        self.control = control if reset else control.after(self.control)
        self.changed()

    def change_tracing(self, changes: TraceChanges, *, reset: bool = False) -> None:
        """Add changes to those in force, or put them in their place. Raises InvalidRequest for a value out of range."""
        changes.over(TraceScope())
        self.tracing = changes if reset else changes.after(self.tracing)
        self.changed()
