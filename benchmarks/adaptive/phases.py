"""A load whose text changes: requests of one trace, then of another, then of the first again, without models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from benchmarks.lab.hindsight import hindsight
from benchmarks.lab.replay import ReplayProposer, ReplaySource, ReplayTarget
from benchmarks.lab.scenario import DrafterSpec, Scenario
from benchmarks.lab.trace import Trace
from specsplit.clock import Clock
from specsplit.sessions import DecodeRequest
from specsplit.values import Sampling, Stopping


@dataclass(frozen=True)
class Phase:
    """One part of a run."""

    name: str
    trace: Trace
    """The recorded requests, which are sent again and again."""


class PhasedSource:
    """A Source of recorded requests, as many of every phase as of the others. All traces are of the same target and drafter."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.phases = phases
        self._traces = [phase.trace for phase in phases]
        everything = [request for trace in self._traces for request in trace.requests]
        self._replayed = ReplaySource(Trace(self._traces[0].header, everything))

    @cached_property
    def in_hindsight(self) -> PhasedSource:
        """The same requests of a drafter that says how often it is right."""
        return PhasedSource([replace(phase, trace=hindsight(phase.trace)) for phase in self.phases])

    def phase_of(self, request: int, scenario: Scenario) -> int:
        """The phase of a request, both by number."""
        return request * len(self.phases) // scenario.requests

    def target(self, clock: Clock) -> ReplayTarget:
        """A target that says the recorded texts."""
        return self._replayed.target(clock)

    def proposer(self, spec: DrafterSpec) -> ReplayProposer:
        """The recorded drafter."""
        return self._replayed.proposer(spec)

    def requests(self, scenario: Scenario) -> list[DecodeRequest]:
        """All requests. The first of each caller is cut, of each at another place, so that callers do not go in step."""
        callers = scenario.arrivals.at_once or 1
        return [
            self._request(number, scenario, min(1.0, (number + 1) / callers)) for number in range(scenario.requests)
        ]

    def truth(self, request: DecodeRequest) -> range:
        return self._replayed.truth(request)

    def _request(self, number: int, scenario: Scenario, share: float) -> DecodeRequest:
        """A request, for so large a share of what was recorded."""
        phase = self.phase_of(number, scenario)
        trace, before = self._traces[phase], sum(len(trace.requests) for trace in self._traces[:phase])
        recorded = number % len(trace.requests)
        roots = trace.requests[recorded]
        sampling = Sampling(trace.header.temperature, seed=before + recorded)  # by which it is found again
        stopping = Stopping(max(1, round(len(roots) * share)), ignore_eos=True)
        return DecodeRequest(str(number), range(min(roots) + 1), sampling, stopping, scenario.plan)
