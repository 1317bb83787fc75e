"""What an operator wants different in the whole cluster while it runs. Pure: whoever carries it out is called back."""

from __future__ import annotations

from specsplit.values import Control, Plan, PlanChanges, TraceChanges, TraceScope
from specsplit_coordinator.watchable import Watchable


class Orders(Watchable):
    """The changes in force, gathered from every call since the coordinator started."""

    def __init__(self) -> None:
        super().__init__()
        self._plan = PlanChanges()
        self._control = Control()
        self._tracing = TraceChanges()

    @property
    def plan(self) -> PlanChanges:
        """The changes to the verifiers' own default plans."""
        return self._plan

    @property
    def control(self) -> Control:
        """Who is to decide what the plan does not say."""
        return self._control

    @property
    def tracing(self) -> TraceChanges:
        """The changes to what everybody's own settings trace."""
        return self._tracing

    def change_plan(self, changes: PlanChanges, control: Control | None = None, *, reset: bool = False) -> None:
        """Add changes to those in force, or put them in their place. Raises InvalidRequest for a value out of range."""
        changes.over(Plan())
        control = control or Control()
        self._plan = changes if reset else changes.after(self._plan)
        self._control = control if reset else control.after(self._control)
        self.changed()

    def change_tracing(self, changes: TraceChanges, *, reset: bool = False) -> None:
        """Add changes to those in force, or put them in their place. Raises InvalidRequest for a value out of range."""
        changes.over(TraceScope())
        self._tracing = changes if reset else changes.after(self._tracing)
        self.changed()
