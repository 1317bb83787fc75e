"""What a verifier tells the coordinator of its speculation, in every heartbeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from specsplit.clock import Clock
from specsplit.values import Control, DrafterReport, Estimate, Plan, SpeculationReport
from specsplit.wire.limits import MAX_MEMBERS
from specsplit.wire.speculation import MOST_SECONDS
from specsplit_verifier.engine.statistics import EngineStatistics
from specsplit_verifier.sessions.drafter_record import DrafterRecord, DrafterSums, Recently


class Reporter:
    """Makes the reports. `names` are the member ids of drafters by address; one without a name is not told of."""

    def __init__(
        self, launched: Plan, statistics: Callable[[], EngineStatistics], control: Callable[[], Control], clock: Clock
    ) -> None:
        """`control`: the controller in force, and its bound if it has one."""
        self.names: Mapping[str, str] = {}
        self._launched = launched
        self._statistics = statistics
        self._control = control
        self._clock = clock
        self._recently = Recently()

    def report(self) -> SpeculationReport:
        """How the verifier speculates now, and what that brought lately."""
        now, control = self._statistics(), self._control()
        estimate = now.plan.estimate
        lately = self._recently.look(now.drafters, self._clock.now())
        steps = sum(each.steps for each in lately.values())
        assert control.adaptive is not None, "some controller is always in force"
        return SpeculationReport(
            adaptive=control.adaptive,
            max_draft_tokens=control.max_draft_tokens,
            launched=self._launched,
            accept_length=1 + sum(each.accepted for each in lately.values()) / steps if steps else 0.0,
            hit_rate=sum(each.hits for each in lately.values()) / steps if steps else 0.0,
            step_s=now.load.step_ms * 1e-3,
            token_s=now.token_s,
            estimate=estimate if estimate is not None and _makes_sense(estimate) else None,
            drafters=_most_used(
                _report_of(self.names[address], sampled, now.drafters[address, sampled], each)
                for (address, sampled), each in lately.items()
                if address in self.names
            ),
            no_drafts=now.no_drafts,
        )


def _makes_sense(estimate: Estimate) -> bool:
    """False for an estimate that the coordinator would refuse, and the whole heartbeat with it."""
    numbers = (estimate.accept_length, estimate.step_s, estimate.token_s, estimate.rate, estimate.static_rate)
    return all(math.isfinite(number) and number >= 0 for number in numbers)


def _most_used(reports: Iterable[DrafterReport]) -> tuple[DrafterReport, ...]:
    """The reports of most steps, as many as the coordinator takes: of more it would refuse the whole heartbeat."""
    return tuple(sorted(reports, key=lambda each: -each.steps)[:MAX_MEMBERS])


def _report_of(member_id: str, sampled: bool, record: DrafterRecord, lately: DrafterSums) -> DrafterReport:
    steps, trips = lately.steps, lately.round_trips
    return DrafterReport(
        member_id=member_id,
        sessions=record.sessions,
        steps=steps,
        accepted=lately.accepted / steps if steps else 0.0,
        held_s=min(MOST_SECONDS, lately.held_s / steps) if steps else 0.0,
        round_trip_s=min(MOST_SECONDS, lately.round_trip_s / trips) if trips else 0.0,
        sampled=sampled,
        movable=record.movable,
    )
