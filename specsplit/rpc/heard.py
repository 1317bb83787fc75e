"""What several coordinators say to one member, as one would say it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from specsplit.membership import (
    CoordinatorDraining,
    Directive,
    Drain,
    HandOver,
    PlanOrder,
    Registered,
    Roster,
    StartWave,
    TracingOrder,
)
from specsplit.ranks.rank import Rank
from specsplit.values import Endpoint, TraceChanges

_Order = TypeVar("_Order", PlanOrder, TracingOrder)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What to call for what is said; None for what does not concern this member."""

    roster: Callable[[Roster], None] | None = None
    plan: Callable[[PlanOrder], None] | None = None
    tracing: Callable[[TraceChanges], None] | None = None
    hand_over: Callable[[HandOver], None] | None = None
    start_wave: Callable[[int], None] | None = None
    drain: Callable[[], None] | None = None


class Heard:
    """Calls back, as directives of any coordinator arrive.

    Rosters are united by member, so a drafter that one coordinator has lost sight of stays while another one has it. Of the orders of an
    operator the one that was given last holds. All else holds whoever says it: a wave is begun once, however many tell of it.
    """

    def __init__(self, callbacks: Callbacks, rank: Rank | None = None) -> None:
        """`rank` learns of waves before its engine does."""
        self._callbacks = callbacks
        self._rank = rank
        self._rosters: dict[str, tuple[int, Roster]] = {}
        """By coordinator, in order of their first rosters: how many were heard by then, of all, and the roster."""
        self._count = 0
        self._away = set[str]()
        """Coordinators whose streams have ended and may begin again."""
        self._plans: dict[str, PlanOrder] = {}
        self._tracings: dict[str, TracingOrder] = {}

    def take(self, coordinator: str, directive: Directive) -> None:
        """Obey what a coordinator says, together with what the others have said."""
        calls = self._callbacks
        match directive:
            case Registered() | CoordinatorDraining():  # it is there, though whoever drains is counted no more
                self._away.discard(coordinator)
            case Roster():
                self._take_roster(coordinator, directive)
            case PlanOrder():
                self._plans[coordinator] = directive
                _call(calls.plan, _latest(self._plans) or directive)
            case TracingOrder():
                self._tracings[coordinator] = directive
                _call(calls.tracing, (_latest(self._tracings) or directive).changes)
            case HandOver():
                _call(calls.hand_over, directive)
            case StartWave():
                if self._rank is not None:
                    self._rank.hears(directive.number)
                _call(calls.start_wave, directive.number)
            case Drain():
                if calls.drain is not None:
                    calls.drain()

    def leaves(self, coordinator: str) -> None:
        """The stream of a coordinator has ended: its roster does not count while another one's does. Its orders hold until it is back."""
        self._away.add(coordinator)
        before, self._rosters = united(self._rosters.values()), self._present()
        if (now := united(self._rosters.values())) != before:
            _call(self._callbacks.roster, now)

    def forget(self, coordinator: str) -> None:
        """A coordinator is gone for good, and what it has said with it."""
        self.leaves(coordinator)
        self._away.discard(coordinator)
        if self._plans.pop(coordinator, None) is not None:
            _call(self._callbacks.plan, _latest(self._plans) or PlanOrder())
        if self._tracings.pop(coordinator, None) is not None:
            _call(self._callbacks.tracing, (_latest(self._tracings) or TracingOrder()).changes)

    def _take_roster(self, coordinator: str, roster: Roster) -> None:
        self._count += 1
        self._rosters[coordinator] = (self._count, roster)
        self._rosters = self._present()
        _call(self._callbacks.roster, united(self._rosters.values()))

    def _present(self) -> dict[str, tuple[int, Roster]]:
        """The rosters without those of coordinators that are away, unless that leaves none: a member goes on with the drafters it has."""
        return {name: said for name, said in self._rosters.items() if name not in self._away} or self._rosters


def united(rosters: Iterable[tuple[int, Roster]]) -> Roster:
    """Every drafter of any of the rosters, as the latest that has it says: in the order of the first, then what only later ones have.

    A roster comes with a number that is higher the later it was heard.
    """
    said = list(rosters)
    latest: dict[str, Endpoint] = {}
    for _, roster in sorted(said, key=lambda each: each[0]):
        latest |= {drafter.member_id: drafter for drafter in roster.drafters}
    names = dict.fromkeys(drafter.member_id for _, roster in said for drafter in roster.drafters)
    return Roster(tuple(latest[name] for name in names))


def _latest(orders: Mapping[str, _Order]) -> _Order | None:
    """The order that was given last, of those that were given at once the first that was heard; None if there is none."""
    return max(orders.values(), key=lambda order: order.ordered_ms, default=None)


_Said = TypeVar("_Said")


def _call(callback: Callable[[_Said], None] | None, said: _Said) -> None:
    if callback is not None:
        callback(said)
