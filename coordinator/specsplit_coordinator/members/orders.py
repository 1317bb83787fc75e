"""The operator's orders: changes to plan, controller and tracing of the whole cluster. Pure: whoever carries them out subscribes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from specsplit.values import Control, Plan, PlanChanges, TraceChanges, TraceScope
from specsplit_coordinator.members.observable import Observable

Changed: TypeAlias = Mapping[str, tuple[object, object]]
"""By the name of a field: its value before the change and after it; None stands for each member's own setting."""


class Orders(Observable):
    """The orders in force, gathered from every call since the coordinator started."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = PlanChanges()
        """The changes to the verifiers' own default plans."""
        self.control = Control()
        """Which controller decides what the plan leaves open."""
        self.tracing = TraceChanges()
        """The changes to what the members' own settings trace."""

    def change_plan(self, changes: PlanChanges, control: Control | None = None, *, reset: bool = False) -> Changed:
        """Add changes to those in force, or put them in their place. Raises InvalidRequest for a value out of range."""
        changes.over(Plan())
        control = control or Control()
        before = (self.plan, self.control)
        self.plan = changes if reset else changes.after(self.plan)
        self.control = control if reset else control.after(self.control)
        return self._notify_of(before, (self.plan, self.control))

    def change_tracing(self, changes: TraceChanges, *, reset: bool = False) -> Changed:
        """Add changes to those in force, or put them in their place. Raises InvalidRequest for a value out of range."""
        changes.over(TraceScope())
        before = self.tracing
        self.tracing = changes if reset else changes.after(self.tracing)
        return self._notify_of((before,), (self.tracing,))

    def _notify_of(self, before: tuple[object, ...], now: tuple[object, ...]) -> Changed:
        """Notify subscribers if anything has changed, and return what has."""
        were = {name: value for each in before for name, value in vars(each).items()}
        are = {name: value for each in now for name, value in vars(each).items()}
        changed = {name: (were[name], value) for name, value in are.items() if value != were[name]}
        if changed:
            self.notify()
        return changed
