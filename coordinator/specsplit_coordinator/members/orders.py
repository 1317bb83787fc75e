"""The operator's orders: changes to plan, controller and tracing of the whole cluster. Pure: whoever carries them out subscribes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from specsplit.values import Control, Plan, PlanChanges, TraceChanges, TraceScope
from specsplit_coordinator.members.observable import Observable

Changed: TypeAlias = Mapping[str, tuple[object, object]]
"""By the name of a field: its value before the change and after it; None stands for each member's own setting."""


class Orders(Observable):
    """The orders in force, gathered from every call since the coordinator started.

    Subscribers are told of what is ordered a second time too: members may have heard something else from another coordinator since.
    """

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        """`wall_s`: seconds since 1970, as coordinators and machines agree on them to some extent."""
        super().__init__()
        self._wall_s = wall_s
        self.plan = PlanChanges()
        """The changes to the verifiers' own default plans."""
        self.plan_ms = 0
        """When they, or the controller, were last ordered, in milliseconds since 1970; 0: never."""
        self.control = Control()
        """Which controller decides what the plan leaves open."""
        self.tracing = TraceChanges()
        """The changes to what the members' own settings trace."""
        self.tracing_ms = 0
        """When they were last ordered, as `plan_ms`."""

    def change_plan(self, changes: PlanChanges, control: Control | None = None, *, reset: bool = False) -> Changed:
        """Add changes to those in force, or put them in their place. Raises InvalidRequest for a value out of range."""
        changes.over(Plan())
        control = control or Control()
        before = (self.plan, self.control)
        self.plan = changes if reset else changes.after(self.plan)
        self.control = control if reset else control.after(self.control)
        if reset or (changes, control) != (PlanChanges(), Control()):
            self.plan_ms = self._after(self.plan_ms)
            self.notify()
        return _changed(before, (self.plan, self.control))

    def change_tracing(self, changes: TraceChanges, *, reset: bool = False) -> Changed:
        """Add changes to those in force, or put them in their place. Raises InvalidRequest for a value out of range."""
        changes.over(TraceScope())
        before = self.tracing
        self.tracing = changes if reset else changes.after(self.tracing)
        if reset or changes != TraceChanges():
            self.tracing_ms = self._after(self.tracing_ms)
            self.notify()
        return _changed((before,), (self.tracing,))

    def _after(self, earlier_ms: int) -> int:
        """The time now, and in any case later than that."""
        return max(earlier_ms + 1, round(self._wall_s() * 1000))


def _changed(before: tuple[object, ...], now: tuple[object, ...]) -> Changed:
    were = {name: value for each in before for name, value in vars(each).items()}
    are = {name: value for each in now for name, value in vars(each).items()}
    return {name: (were[name], value) for name, value in are.items() if value != were[name]}
